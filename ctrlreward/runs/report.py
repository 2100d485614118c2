"""Command `ctrlreward report`: an HTML file about a run, and which checkpoint to keep.

The file is self-contained, has no scripts and requests nothing; its content security policy forbids
both.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctrlreward.command_line.terminal import ARROWS, plain_parser, printable, user_errors
from ctrlreward.files import write_whole
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.report_contents import contents, number
from ctrlreward.runs.report_curves import drawing
from ctrlreward.runs.select import add_run_options

_PAGE = Path(__file__).with_name("report_page")

_DESCRIPTION = """Write a report of a run as a single HTML file: what happened, whether the
reward was gamed and by what, which checkpoint to keep and why, and the texts of each prompt
through training. Reads what `ctrlreward select` reads, and applies the rules that the run noted
unless options ask for others."""

_EXAMPLES = (
    "ctrlreward report runs/demo",
    "ctrlreward report out/grpo --maximise score/relevance --guard reward:score/distinct_2",
)


def run(arguments: list[str]) -> None:
    """Write the report, and print the verdict."""
    options = parser().parse_args(arguments)
    with user_errors():
        folder = options.run if options.run.is_dir() else options.run.parent
        path = Path(options.output or folder / "report.html")
        report = write_report(path, options.run, options)
    print(printable(report["verdict"]["sentence"]))
    for what in report["missing"]:
        print(printable(f"  missing: {what}"), file=sys.stderr)
    print(path)


def write_report(path: Path, run: str | Path, options: Any = None) -> dict[str, Any]:
    """Write the report of a run, with the options of the command or its defaults.

    Raises:
        ValueError: The run has neither a log nor texts; no file is written.
    """
    options = options or parser().parse_args([str(run)])
    report = contents(read_stored_run(run, options.checkpoints), options)
    write_whole(path, page(report))
    return report


def parser() -> ArgumentParser:
    """Return the parser of the command."""
    parser = plain_parser("ctrlreward report", _DESCRIPTION, _EXAMPLES)
    add_run_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="else report.html in the run")
    return parser


def page(report: Mapping[str, Any]) -> str:
    """Return the HTML of a report."""
    style = (_PAGE / "page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {"number": number, "arrow": ARROWS.get}
    return environment.get_template("page.html").render(
        run=report,
        drawing=drawing,
        symbols={"best": "◆", "stop": "■", "alarm": "▲"},
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        version=version("ctrlreward"),
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _shown(value: Any) -> Any:
    """Return a text without control characters and what UTF-8 can't encode."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value.encode("utf-8", "backslashreplace").decode("utf-8"))
