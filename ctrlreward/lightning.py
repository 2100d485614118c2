"""Callbacks, logger and `PolicyTuner` for the package `lightning.pytorch`.

The same names as in `ctrlreward.callbacks` and `ctrlreward.policy`, which are for the package
`pytorch_lightning`. Objects without a base class of Lightning are the same in both.
"""

from importlib.util import find_spec

from ctrlreward.extras import not_installed
from ctrlreward.lightning_package import PACKAGES, lazy_names

if find_spec("lightning") is None:
    raise ImportError(not_installed("lightning", "ctrlreward.lightning"))

__getattr__, __dir__, __all__ = lazy_names(__name__, PACKAGES[1])
