"""Lightning callbacks that let a training run act on scores, for `pytorch_lightning`.

`ctrlreward.lightning` has the same callbacks for `lightning.pytorch`. Names are imported at their
first use (the list is in `__init__.pyi`), so that neither package loads the other.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
