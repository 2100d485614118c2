"""Scorers: frozen models and formulas that turn `Samples` into named scores.

Names are imported at their first use (the list is in `__init__.pyi`): what reads files of scores
loads no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
