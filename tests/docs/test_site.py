"""What `make docs` reads: the table of contents, and the API pages."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_users_file import MODULES, public_names

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@cache
def api() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "api_pages.py"))


@cache
def api_pages() -> dict[str, str]:
    return api()["pages"]()


def resolve(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", [*MODULES, "ctrlreward.huggingface", "ctrlreward.serving"])
def test_every_public_name_has_a_description_and_a_row(module: str) -> None:
    whole = "\n".join(api_pages().values())
    described = re.findall(
        r"^\.\. (?:auto(?:class|function)|py:data):: (\S+)$", whole, re.MULTILINE
    )
    assert len(described) == len(set(described))  # an anchor twice is a warning
    for name in public_names(module):
        item = getattr(importlib.import_module(module), name)
        if inspect.ismodule(item):
            assert any(page.startswith(item.__name__) for page in api_pages())
            continue
        row = re.search(rf"^   \* - :py:obj:`{name} <(\S+)>`$", api_pages()[module], re.MULTILINE)
        assert row is not None, name
        assert row[1] in described
        assert resolve(row[1]) is item or module == "ctrlreward.lightning"
