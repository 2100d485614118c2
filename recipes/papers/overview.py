"""Tables and figures of each paper, with their commands, costs and printed results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

import yaml

from ctrlreward.command_line.terminal import plain_parser


def main(paper: str, arguments: Sequence[str]) -> None:
    """List a paper's tables and figures; for the reproduction study, compute its tables as well.

    Raises:
        SystemExit: With status 2 after an option.
    """
    command = f"ctrlreward papers {paper}"
    plain_parser(command, (__doc__ or "").strip(), (command,)).parse_args(arguments)
    print("\n".join(lines(paper)))
    if paper == "reproduction":
        from ctrlreward.recipes.papers.reproduction.tables import report

        print(f"\n{report()}")


def lines(paper: str) -> Iterator[str]:
    """Yield the title, how the figures were measured, and the entries of `overview.yaml`."""
    content = yaml.safe_load(files(__package__).joinpath("overview.yaml").read_text("utf-8"))
    yield content[paper]["title"]
    yield content["measured"]
    for entry in content[paper]["entries"]:
        yield f"\n{entry['item']}  [{entry['cost']}]"
        yield from (f"  $ {command}" for command in entry.get("commands", ()))
        yield f"  {entry['printed']}"
