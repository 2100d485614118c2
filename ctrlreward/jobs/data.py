"""Command `ctrlreward data`: the data sets of the recipes, listed and downloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from ctrlreward.command_line.terminal import plain_console, plain_parser, user_errors
from ctrlreward.data import DATA_SETS, DataFile, data_folder, find

_DESCRIPTION = """The data sets of the recipes: list them, download and check them, and show
their folders. Recipes name their files, such as yelp-shen/sentiment.dev.0, and get them at first
use. The folder is $CTRLREWARD_DATA if set, else data in the cache."""

_EXAMPLES = (
    "ctrlreward data list",
    "ctrlreward data get yelp-shen/sentiment.test.0 pplm",
    "ctrlreward data where li2018/reference.0",
)


def run(arguments: list[str]) -> None:
    """List data sets, get them, or print where they are."""
    parser = plain_parser("ctrlreward data", _DESCRIPTION, _EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="{list,get,where}")
    purposes: dict[Callable[[Sequence[str]], None], tuple[str, str]] = {
        list_data: ("list", "print each data set with size, licence and citation, or its files"),
        get_data: ("get", "download and check data sets or files"),
        print_paths: ("where", "print the folder, or the path of a file, without a download"),
    }
    for action, (name, purpose) in purposes.items():
        child = actions.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
        number = "+" if action is get_data else "*"
        child.add_argument("names", nargs=number, metavar="NAME", help="data set, or DATA SET/FILE")
        child.set_defaults(act=action)
    given = parser.parse_args(arguments)
    with user_errors():
        given.act(given.names)


def list_data(names: Sequence[str]) -> None:
    """Print all data sets, or the files of the named ones with their addresses."""
    for file in _found(names):
        origin = file.address or "made by ctrlreward"
        state = "here" if file.path.is_file() else "not here"
        print(f"{file}  {_size([file])}  {state}\n  {origin}")
    if names:
        return
    table = Table("data set", "files here", "size", "licence", "cite", box=None, pad_edge=False)
    for data_set in DATA_SETS.values():
        files = list(data_set.files.values())
        here = sum(file.path.is_file() for file in files)
        count = f"{here} of {len(files)}"
        table.add_row(data_set.name, count, _size(files), data_set.licence, data_set.cite)
    plain_console().print(table)
    print(f"\nfolder: {data_folder()}")


def get_data(names: Sequence[str]) -> None:
    """Get files; check existing ones. Raises as `find` and `DataFile.get`."""
    files = _found(names)
    for name in dict.fromkeys(file.data_set for file in files):
        print(
            f"{name}: licence: {DATA_SETS[name].licence}; cite: {DATA_SETS[name].cite}", flush=True
        )
        for file in files:
            if file.data_set == name:
                path = file.get()
                wrong = file.problem(path)
                note = f"; not as published: {wrong}" if wrong else ""
                print(f"  {file.name}  {_size([file])}  {path}{note}", flush=True)


def print_paths(names: Sequence[str]) -> None:
    """Print the path of each file, or the folder of all data sets, whether it exists or not."""
    for path in [file.path for file in _found(names)] or [data_folder()]:
        print(path)


def _found(names: Sequence[str]) -> list[DataFile]:
    return list(dict.fromkeys(file for name in names for file in find(name)))


def _size(files: Sequence[DataFile]) -> str:
    """Return the size of files; some sizes are known only after a download."""
    sizes = [file.size for file in files]
    total = sum(size or 0 for size in sizes)
    if not total:
        return "size unknown"
    more = "over " if None in sizes else ""
    return f"{more}{total / 10**6:.1f} MB" if total >= 10**5 else f"{more}{total / 10**3:.1f} kB"
