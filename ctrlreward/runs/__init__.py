"""Finished and running runs of any trainer: their logs, their stored texts, the checkpoint to keep.

Names are imported at their first use (the list is in `__init__.pyi`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
