"""Reference-free scores of generated text, and training runs that act on them.

Names are imported at their first use (the list is in `__init__.pyi`): `import ctrlreward` loads
neither torch nor transformers.
"""

from functools import cache
from importlib.metadata import version
from typing import Any

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__ or name.startswith("_"):
        return _attribute(name)
    raise AttributeError(f"ctrlreward has no attribute {name!r}{_hint(name)}")


@cache  # the parser of a job asks for the same names hundreds of times, and drops the hint
def _hint(name: str) -> str:
    from ctrlreward.arguments import did_you_mean

    if name in _attribute("callbacks").__all__:
        return ". Import it from ctrlreward.callbacks (Lightning) or ctrlreward.huggingface."
    return did_you_mean(name, __all__)


__version__ = version("ctrlreward")
