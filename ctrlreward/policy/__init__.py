"""Reinforcement learning of a language model on a `Reward`.

`PolicyTuner` is a module of `pytorch_lightning`; `ctrlreward.lightning` has it for
`lightning.pytorch`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
