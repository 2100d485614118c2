"""Sphinx site of these pages and of the docstrings; `make docs` builds it.

GitHub shows the pages as they are: the table of contents is the lists of `index.md`, and no
page has directives. `api_pages.py` writes the API reference into `api/`.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from textwrap import indent
from typing import Any

from sphinx.ext.napoleon import GoogleDocstring

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from api_pages import public_targets, write_pages  # noqa: E402

# Of a kernel that nothing here uses.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.CRITICAL)

project = "ctrlreward"
version = release = version_of("ctrlreward")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "SKILL.md"]

myst_heading_anchors = 4  # links to headings, as on GitHub

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 90
default_role = "py:obj"  # a name in single backticks is a link where there is one
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"ctrlreward {release}"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["site.css"]

# A docstring's parts: fenced code, an example, a page, code in backticks, and a bar, which has a
# meaning in reStructuredText.
PARTS = re.compile(
    r"^```python\n(?P<fenced>.*?)^```$|(?P<kept>^ *>>>.*?(?:\n *\n|\Z)|``.+?``)"
    r"|`?docs/(?P<page>\w+)\.md`?|`(?P<code>[^`]+)`|(?P<bar>\|)",
    re.MULTILINE | re.DOTALL,
)
TARGETS = public_targets()
UNIQUE = public_targets(unique=True)


def with_links(app: Any, kind: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText, with a link where it names something public.

    Docstrings are read in terminals and editors: they have single backticks around all code, and
    lists that follow a line.
    """

    def marked(part: re.Match[str]) -> str:
        if part["kept"]:
            return part["kept"]
        if part["bar"]:
            return r"\|"
        if part["fenced"]:
            return ".. code-block:: python\n\n" + indent(part["fenced"], "   ")
        if part["page"]:
            return f":doc:`/{part['page']}`"
        target = TARGETS.get(part["code"].removesuffix("()"))
        return f":py:obj:`{part['code']} <{target}>`" if target else f"``{part['code']}``"

    text = PARTS.sub(marked, "\n".join(lines))
    # A blank line between a line and a list that is not indented less.
    text = re.sub(r"^(?!( *)- )( *)(\S.*)\n(?=\2 *- )", r"\2\3\n\n", text, flags=re.MULTILINE)
    lines[:] = text.split("\n")


def whole_text(docstring: GoogleDocstring) -> tuple[str, list[str]]:
    """Return type and text of a property's docstring: no colon in it ends a type."""
    return "", docstring._dedent(docstring._consume_to_end())


GoogleDocstring._consume_inline_attribute = whole_text


# In a page: a block of code, a heading, or code that may be a public name and is not a link's text.
PAGE_PARTS = re.compile(
    r"^ *```.*?^ *```$|^#.*?$|^---\n.*?^---$|(?<![\[`])`(?P<code>[\w.]+)`(?![\]`])",
    re.MULTILINE | re.DOTALL,
)


def with_api_links(app: Any, page: str, source: list[str]) -> None:
    """Link names in the code of a Markdown page to the API, where only one module has the name."""

    def marked(part: re.Match[str]) -> str:
        target = UNIQUE.get(part["code"] or "")
        return f"{{py:obj}}`{part['code']} <{target}>`" if target else part[0]

    if not page.startswith("api/"):
        source[0] = PAGE_PARTS.sub(marked, source[0])


def with_contents(app: Any, page: str, source: list[str]) -> None:
    """Add the table of contents to `index.md`: a part for each of its lists of pages."""
    if page != "index":
        return
    sections = re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", source[0], re.MULTILINE)
    for title, body in sections:
        pages = re.findall(r"^- \[.+?\]\((.+?)\.md\)", body, re.MULTILINE)
        pages += ["api/index"] if title == "Reference" else []
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages)
        source[0] += "\n```\n"


REQUEST = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//|@import|url\(\W?(?:https?:)?//"
    r"|<link(?![^>]+rel=\"(?:canonical|prev|next)\")[^>]+href=\"(?:https?:)?//"
)


def check_requests(app: Any, error: Exception | None) -> None:
    """Raise if a page of the site requests anything from another host."""
    files = [*Path(app.outdir).rglob("*.html"), *Path(app.outdir).rglob("*.css")]
    for file in files if error is None else ():
        if found := REQUEST.search(file.read_text(encoding="utf-8")):
            raise RuntimeError(f"{file} requests from another host: {found[0]}")


def setup(app: Any) -> None:
    """Write the API pages, and connect the functions above."""
    write_pages(DOCS / "api")
    app.connect("autodoc-process-docstring", with_links, priority=100)  # before napoleon
    app.connect("source-read", with_api_links)
    app.connect("source-read", with_contents)
    app.connect("build-finished", check_requests)
