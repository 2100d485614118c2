"""Pages of the API reference: a page per public module and per scorer, for autodoc to fill.

A name that two modules export is described in one of them, and a row with a link in the other.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

# In this order: the first module that exports a name describes it.
MODULES = [
    *("scorers", "callbacks", "policy", "huggingface", "selection", "functional", "serving"),
    *("runs", "preferences", "probing", "models"),
    *("adapters.trl", "adapters.verl", "adapters.openrlhf", "adapters.torchmetrics"),
    *("serving.get_reward", "", "lightning"),
]

# Public modules of formulas: what they define is public, whether the package exports it or not.
FORMULAS = "ctrlreward.functional"


def module_names() -> list[str]:
    """Return the import paths of all public modules."""
    names = [f"ctrlreward.{name}".rstrip(".") for name in MODULES]
    package = importlib.import_module(FORMULAS)
    inner = (module.name for module in pkgutil.iter_modules(package.__path__))
    place = names.index(FORMULAS)
    return [*names[:place], *(f"{FORMULAS}.{name}" for name in inner), *names[place:]]


@cache
def public_names(module: str) -> dict[str, Any]:
    """Return what a module exports: the names in `__all__`, or else what it defines."""
    item = importlib.import_module(module)
    own = [
        name
        for name, part in vars(item).items()
        if name[0] != "_"
        and getattr(part, "__module__", None) == module
        and name != "log"
        and not isinstance(part, type(math))
    ]
    names = {name: getattr(item, name) for name in sorted(getattr(item, "__all__", own))}
    return {name: part for name, part in names.items() if not inspect.ismodule(part)}


@cache
def described() -> dict[str, str]:
    """Return where each public name is described: `module.name` → `module.name`."""
    first: dict[int, str] = {}
    places = {}
    for module in module_names():
        for name, item in public_names(module).items():
            own = f"{module}.{name}"
            if module == "ctrlreward.lightning":  # classes that differ in their base alone
                packages = ("ctrlreward.callbacks", "ctrlreward.policy")
                places[own] = next(f"{p}.{name}" for p in packages if name in public_names(p))
            else:
                places[own] = first.setdefault(id(item), own)
    return places


def public_targets(unique: bool = False) -> dict[str, str]:
    """Return the place of each public name by all ways in which a docstring may write it.

    Of a name that two modules have, this is the place of the first, or nothing if it has to be
    unique. `ctrlreward.lightning` has the names of `callbacks`, and counts as the same. A word
    such as `generate` may as well be of another library.
    """
    targets: dict[str, list[str]] = {}
    for own, place in described().items():
        parts = own.split(".")
        for start in range(len(parts)):
            targets.setdefault(".".join(parts[start:]), []).append(place)
    return {
        name: places[0]
        for name, places in targets.items()
        if re.search("[A-Z_.]", name) and (len({*places}) == 1 or not unique)
    }


def pages() -> dict[str, str]:
    """Return the text of each page by its file name, without the ending."""
    found = {"index": _index()}
    for module in module_names():
        found[module] = _module_page(module)
    for name in public_names("ctrlreward.scorers"):
        if scorer := _scorer(name):
            found[f"ctrlreward.scorers.{name}"] = _scorer_page(name, scorer)
    return found


def write_pages(folder: Path) -> None:
    """Write all pages into a folder of their own; a page that is as it was is not built again."""
    folder.mkdir(exist_ok=True)
    texts = {folder / f"{name}.rst": text for name, text in pages().items()}
    for stale in {*folder.iterdir()} - texts.keys():
        stale.unlink()
    for file, text in texts.items():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _index() -> str:
    lines = [*_title("API reference"), ".. toctree::", "   :maxdepth: 1", ""]
    return "\n".join([*lines, *(f"   {module}" for module in sorted(module_names())), ""])


def _module_page(module: str) -> str:
    scorers = module == "ctrlreward.scorers"
    lines = [*_title(module), f".. automodule:: {module}", "   :no-members:", ""]
    pages, rows, bodies = [], [], []
    for name, item in public_names(module).items():
        place = described()[f"{module}.{name}"]
        rows.append(f"   * - :py:obj:`{name} <{place}>`")
        rows.append(f"     - {_summary(item)}")
        if place != f"{module}.{name}":
            continue
        if scorers and _scorer(name):
            pages.append(f"   {place}")
        else:
            bodies += _body(place, item)
    if pages:
        lines += [".. toctree::", "   :hidden:", "", *pages, ""]
    lines += [".. list-table::", "   :widths: 30 70", "", *rows, ""]
    return "\n".join([*lines, *bodies])


def _body(place: str, item: Any) -> list[str]:
    if inspect.isclass(item):
        return [f".. autoclass:: {place}", "   :members:", ""]
    return [f".. {'autofunction' if inspect.isroutine(item) else 'py:data'}:: {place}", ""]


def _scorer_page(name: str, scorer: Any) -> str:
    from ctrlreward.scorers import ModelScorer

    place = f"ctrlreward.scorers.{name}"
    lines = [*_title(name), ".. list-table::", "   :header-rows: 1", ""]
    lines += _row("score", "better", "range", "columns")
    for score, spec in scorer.specs.items():
        low, high = (
            "(-∞" if spec.range[0] == -math.inf else f"[{spec.range[0]:.3g}",
            "∞)" if spec.range[1] == math.inf else f"{spec.range[1]:.3g}]",
        )
        columns = ", ".join(f"``{column}``" for column in scorer.required_columns([score]))
        better = "higher" if spec.higher_is_better else "lower"
        lines += _row(f"``{score}``", better, f"{low}, {high}", columns or "none but the texts")
    if costs := _costs(name):
        lines += ["", "Cost of 1,000 texts (:doc:`../scorers`, section Cost):", ""]
        lines += [".. list-table::", "   :header-rows: 1", ""]
        for row in [("", "model", "core seconds", "TFLOP"), *costs]:
            lines += _row(*row)
    own = [
        member
        for member, part in vars(type(scorer)).items()
        if member[0] != "_" and part.__doc__ and not hasattr(ModelScorer, member)
    ]
    members = [f"   :members: {', '.join(own)}"] if own else []
    return "\n".join([*lines, "", f".. autoclass:: {place}", *members, ""])


def _costs(name: str) -> list[tuple[str, ...]]:
    """Return the rows of a scorer in the table of costs in scorers.md: options, model, figures."""
    page = (Path(__file__).parent / "scorers.md").read_text(encoding="utf-8")
    found = re.findall(rf"^\| `{name}`,? ?(.*?) \| (.*?) \| ([\d.,]+) \| ([\d.,]+) \|$", page, re.M)
    return [tuple(cell.replace("`", "``") or "all" for cell in row) for row in found]


def _scorer(name: str) -> Any:
    """Return a scorer with default arguments, which loads no model; None for other names."""
    from ctrlreward.scorers import Judge, RemoteRewardModel, RewardModel, Rubric, Scorer

    kind = public_names("ctrlreward.scorers")[name]
    if not inspect.isclass(kind) or not issubclass(kind, Scorer) or inspect.isabstract(kind):
        return None
    if kind is Judge:
        return Judge("smollm2-135m", Rubric("{text}", [1, 2, 3, 4, 5]))
    if kind is RewardModel:
        return RewardModel("runs/reward_model")
    if kind is RemoteRewardModel:
        return RemoteRewardModel("http://127.0.0.1:8000")
    if name == "FunctionScorer":
        return None
    return kind(aspects="all") if "aspects" in inspect.signature(kind).parameters else kind()


def _row(*cells: str) -> list[str]:
    return [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(cells)]


def _title(text: str) -> Iterator[str]:
    yield from (text, "=" * len(text), "")


def _summary(item: Any) -> str:
    """Return the first paragraph of a docstring, in one line."""
    documented = inspect.isclass(item) or inspect.isroutine(item)
    text = (inspect.getdoc(item) or "") if documented else ""
    return " ".join(text.partition("\n\n")[0].split()).replace("`", "``").replace("|", r"\|")
