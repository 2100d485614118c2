"""Command `ctrlreward report`: an HTML file about a run, and which checkpoint to keep.

The file is self-contained and requests nothing; its content security policy forbids it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctrlreward.arguments import check_ending
from ctrlreward.command_line.parser import CommandParser, command_parser
from ctrlreward.command_line.terminal import printable, user_errors
from ctrlreward.files import json_text, write_whole
from ctrlreward.plots.style import arrowed
from ctrlreward.runs.report_contents import contents
from ctrlreward.runs.select import add_rule_options, check_rule_options
from ctrlreward.serving.serve import listen

_PAGE = Path(__file__).with_name("report_page")
_NAME = "report.html"
_READ = (".jsonl", ".gz", ".parquet", ".json", ".csv", ".yaml", ".wandb", ".db", ".log")

_DESCRIPTION = """Write a report of one or more runs as a single HTML file: what happened, whether
the reward was gamed and by what, which checkpoint to keep and why, and the texts of each prompt
through training. Reads what `ctrlreward select` reads, and applies the rules of the run's
config.yaml or summary.json unless options ask for others.

Exit status: 0 if a report is written, 2 for a mistake in the arguments."""

_EXAMPLES = (
    "ctrlreward report runs/demo",
    "ctrlreward report runs/seed0 runs/seed1 -o seeds.html",
    "ctrlreward report out/grpo --maximise score/relevance --guard reward:score/distinct_2",
    "ctrlreward report runs/demo --serve",
)


def run(arguments: list[str]) -> None:
    """Write the report, or serve it while the run continues."""
    parser = _parser()
    options = parser.parse_args(arguments)
    with user_errors():
        check_ending("--output", options.output, ".html")
        check_rule_options(options)
        if options.serve:
            _serve(options)
            return
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
    help_ = "follow a running job in a browser, on this machine only"
    parser.add("--serve", help_, action="store_true")
    parser.add("--port", "port of --serve, 0 for a free one", type=int, default=8710)
    return parser


# The page


def page(found: Mapping[str, Any], live: str = "") -> str:
    """Return the HTML of a report; `live` is the version that a served page polls."""
    script, style = ((_PAGE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": _number, "arrow": partial(arrowed, "")}
    keys = ("name", "charts", "marks", "front", "texts")
    shown = {"runs": [{key: run[key] for key in keys} for run in found["runs"]], "live": live}
    return environment.get_template("page.html").render(
        **found,
        live=live,
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


# A running job


def _serve(options: Any) -> None:
    """Serve the page on loopback; it reloads itself when a run has written something."""
    if remote := [name for name in options.runs if "://" in name]:
        raise ValueError(f"--serve follows files on this machine, got {remote[0]}")
    contents(options.runs, options)  # mistakes are reported before the server starts
    listener = listen("127.0.0.1", options.port)  # raises an error that names the port
    port = listener.getsockname()[1]
    handler = partial(_Handler, _Followed(options))
    server = ThreadingHTTPServer(("127.0.0.1", port), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    address = f"http://127.0.0.1:{port}/"
    print(f"{address} (Ctrl-C ends it)", flush=True)
    if sys.stdout.isatty():
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()


class _Followed:
    """The page of runs, rebuilt when their files have changed."""

    def __init__(self, options: Any) -> None:
        self.options, self.lock = options, threading.Lock()
        self.made, self.html = "", ""

    def version(self) -> str:
        """Return a digest of names, sizes and times of the files that a report reads."""
        seen = []
        for name in self.options.runs:
            path = Path(name)
            files = [path] if path.is_file() else sorted(path.rglob("*"))
            for file in files:
                if file.suffix in _READ or "tfevents" in file.name:
                    stat = file.stat()
                    seen.append((str(file), stat.st_size, stat.st_mtime_ns))
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    def page(self) -> str:
        """Return the page of the files on disk; the last one while a file is half written."""
        with self.lock:
            now = self.version()
            if now != self.made:
                try:
                    self.html = page(contents(self.options.runs, self.options), live=now)
                    self.made = now
                except (ValueError, OSError) as error:
                    print(printable(f"waiting: {error}"), file=sys.stderr)
                    self.html = self.html or page({"runs": [], "comparison": None}, live="none")
            return self.html


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, followed: _Followed, *arguments: Any) -> None:
        self.followed = followed
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer with the page, or with its version."""
        # Another site's page must not read the texts by a name that resolves to this machine.
        host = self.headers.get("Host", "").rpartition(":")[0]
        paths = {"/": self.followed.page, "/version": self.followed.version}
        answer = paths.get(self.path) if host in ("127.0.0.1", "localhost") else None
        body = answer().encode() if answer else b"not found"
        kind = "text/html" if self.path == "/" and answer else "text/plain"
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing for each request."""
