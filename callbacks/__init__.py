"""Lightning callbacks that let a training run act on scores, for `pytorch_lightning`.

`ctrlreward.lightning` has the same callbacks for `lightning.pytorch`. Names are imported at their
first use, so that neither package loads the other.
"""

from ctrlreward.lightning_package import PACKAGES, lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, PACKAGES[0])
