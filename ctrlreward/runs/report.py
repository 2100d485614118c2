"""Command `ctrlreward report`: an HTML file about a run, and which checkpoint to keep.

The file is self-contained and requests nothing; its content security policy forbids it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctrlreward.arguments import check_ending
from ctrlreward.command_line.parser import CommandParser, command_parser
from ctrlreward.command_line.terminal import printable, user_errors
from ctrlreward.files import json_text, write_whole
from ctrlreward.plots import arrowed
from ctrlreward.runs.report_contents import contents
from ctrlreward.runs.select import add_rule_options, check_rule_options

_PAGE = Path(__file__).with_name("report_page")
_NAME = "report.html"

_DESCRIPTION = """Write a report of one or more runs as a single HTML file: what happened, whether
the reward was gamed and by what, which checkpoint to keep and why, and the texts of each prompt
through training. Reads what `ctrlreward select` reads, and applies the rules of the run's
config.yaml or summary.json unless options ask for others.

Exit status: 0 if a report is written, 2 for a mistake in the arguments."""

_EXAMPLES = (
    "ctrlreward report runs/demo",
    "ctrlreward report runs/seed0 runs/seed1 -o seeds.html",
    "ctrlreward report out/grpo --maximise score/relevance --guard reward:score/distinct_2",
)


def run(arguments: list[str]) -> None:
    """Write the report, and print the verdicts."""
    parser = _parser()
    options = parser.parse_args(arguments)
    with user_errors():
        check_ending("--output", options.output, ".html")
        check_rule_options(options)
        path = Path(options.output or _folder(options.runs[0]) / _NAME)
        found = write_report(path, options.runs, options)
    for each in (found or {"runs": []})["runs"]:
        print(printable(f"{each['folder']}: {each['verdict']['sentence']}"))
        for what in each["missing"]:
            print(printable(f"  missing: {what}"), file=sys.stderr)
    print(path)


def write_report(path: Path, runs: Sequence[str], options: Any = None) -> dict[str, Any] | None:
    """Write the report of some runs, with the options of the command or its defaults.

    Without options, as at the end of a job, nothing is written for a run with neither a log nor
    texts, and None is returned.
    """
    found = contents(runs, options or _parser().parse_args([*runs]))
    if options is None and not any(run["source"] or run["texts"] for run in found["runs"]):
        return None
    write_whole(path, page(found))
    return found


def _folder(name: str) -> Path:
    path = Path(name)
    return path if path.is_dir() else path.parent


def _parser() -> CommandParser:
    parser = command_parser("ctrlreward report", "RUN [RUN ...] [options]", _DESCRIPTION, _EXAMPLES)
    add_rule_options(parser)
    help_ = f"the HTML file; by default {_NAME} in the first run"
    parser.add("-o", help_, "--output", metavar="FILE")
    return parser


# The page


def page(found: Mapping[str, Any]) -> str:
    """Return the HTML of a report."""
    script, style = ((_PAGE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": _number, "arrow": partial(arrowed, "")}
    keys = ("name", "charts", "marks", "front", "texts")
    shown = {"runs": [{key: run[key] for key in keys} for run in found["runs"]]}
    return environment.get_template("page.html").render(
        **found,
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        version=version("ctrlreward"),
        data=Markup(_script_json(shown)),
        script=Markup(script),
        style=Markup(style),
        script_hash=_digest(script),
        style_hash=_digest(style),
    )


def _script_json(value: Any) -> str:
    """Return JSON that is safe in a script element: HTML's and JavaScript's characters escaped."""
    text = json.dumps(json.loads(json_text(value)), ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # of unpaired surrogates


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _number(value: Any, sign: str = "") -> str:
    if not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:{sign},.0f}" if abs(value) >= 1e4 else f"{value:{sign}.4g}"
