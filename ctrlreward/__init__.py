"""Reference-free scores of generated text, and training runs that act on them.

Names are imported at their first use (the list is in `__init__.pyi`): `import ctrlreward` loads
neither torch nor transformers.
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = version("ctrlreward")
