"""Reinforcement learning of a language model on a `Reward`.

`PolicyTuner` is a module of `pytorch_lightning`; `ctrlreward.lightning` has it for
`lightning.pytorch`.
"""

from ctrlreward.lightning_package import PACKAGES, lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, PACKAGES[0])
