"""Share of mutants that the tests kill: tests may leave when the same mutants still die.

    python benchmarks/mutants.py draw --exclude PATTERN ...   # writes benchmarks/mutants.csv, once
    python benchmarks/mutants.py run --output before.jsonl    # runs each of them
    python benchmarks/mutants.py report before.jsonl after.jsonl

A mutant changes one expression within a function: a comparison, an operator, a number, a condition.
It is known by its file, function and expression, so it is found again when lines move. Where these
are gone, it is left out of the share. It runs against the tests of its own package only: those that
execute its line, the quickest first, until one fails.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import fnmatch
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "mutants.csv"
PACKAGES = {  # folder of the library: the folder of its tests, and its share of the mutants
    "ctrlreward/functional": ("tests/functional", 0.25),
    "ctrlreward/selection": ("tests/selection", 0.25),
    "ctrlreward/scorers": ("tests/scorers", 0.25),
    "callbacks": ("tests/callbacks", 0.2),
    "ctrlreward/huggingface/decision.py": ("tests/huggingface", 0.05),
}
TIME_LIMIT = 300  # seconds a mutant; one that hangs is dead

COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    },
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A changed expression: the n-th one of this text in this function of this file."""

    file: str
    function: str
    line: int  # when it was drawn
    original: str
    mutated: str
    ordinal: int


def mutated(node: ast.expr) -> str | None:
    """Return the changed text of an expression; None if no operator applies."""
    copy = deepcopy(node)
    match copy:
        case ast.Compare(ops=[operator]):
            copy.ops = [COMPARISONS[type(operator)]()]
        case ast.BoolOp():
            copy.op = ast.Or() if isinstance(copy.op, ast.And) else ast.And()
        case ast.BinOp(left=left, op=operator) if type(operator) in OPERATORS:
            if isinstance(left, ast.JoinedStr) or isinstance(getattr(left, "value", None), str):
                return None  # text
            copy.op = OPERATORS[type(operator)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            copy = operand
        case ast.Constant(value=bool() as value):
            copy = ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            copy = ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            copy.func.id = CALLS[name]
        case ast.IfExp(test=test):
            copy.test = ast.UnaryOp(ast.Not(), test)
        case _:
            return None
    return ast.unparse(copy)


def expressions(source: str) -> Iterator[tuple[str, ast.stmt, ast.expr]]:
    """Yield (function, statement, expression) of what a mutant may change.

    Messages, annotations, defaults and slices are left alone.
    """

    def walk(
        node: ast.AST, names: str, function: str, statement: ast.stmt | None
    ) -> Iterator[tuple[str, ast.stmt, ast.expr]]:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            children = list(node.body)
            names = f"{names}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                function = names
        elif isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value else []
        elif isinstance(node, ast.expr) and function and statement is not None:
            yield function, statement, node
        for child in children:
            yield from walk(child, names, function, statement)

    yield from walk(ast.parse(source), "", "", None)


def mutants_of(file: str) -> list[tuple[Mutant, ast.stmt, ast.expr]]:
    """Return all mutants of a file, each with its statement and the expression to replace."""
    found = []
    ordinals: Counter[tuple[str, str]] = Counter()
    for function, statement, node in expressions((ROOT / file).read_text()):
        original = ast.unparse(node)
        if (text := mutated(node)) is not None:
            ordinal = ordinals[function, original]
            mutant = Mutant(file, function, node.lineno, original, text, ordinal)
            found.append((mutant, statement, node))
        ordinals[function, original] += 1
    return found


def draw(count: int, exclude: list[str]) -> None:
    """Write `count` mutants to the table, one a line of source, at random by a fixed seed."""
    chosen: list[Mutant] = []
    for folder, (_, share) in PACKAGES.items():
        paths = [ROOT / folder] if folder.endswith(".py") else sorted((ROOT / folder).glob("*.py"))
        files = [str(path.relative_to(ROOT)) for path in paths]
        files = [file for file in files if not any(fnmatch.fnmatch(file, p) for p in exclude)]
        found = [mutant for file in files for mutant, *_ in mutants_of(file)]
        found = [
            m
            for m in found
            if not any(fnmatch.fnmatch(f"{m.file}:{m.function}", p) for p in exclude)
        ]
        random.Random(folder).shuffle(found)
        lines = {(mutant.file, mutant.line): mutant for mutant in reversed(found)}
        chosen += random.Random(0).sample(sorted(lines.values(), key=repr), round(count * share))
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(chosen[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, chosen))


def located(mutant: Mutant) -> tuple[str, ast.stmt, ast.expr] | None:
    """Find a mutant in today's sources, first in its own file; None if its code is gone."""
    package = next(folder for folder in PACKAGES if mutant.file.startswith(folder))
    neighbours = sorted((ROOT / package).glob("*.py"))  # none for a single file
    for path in [ROOT / mutant.file, *neighbours]:
        if path.exists():
            file = str(path.relative_to(ROOT))
            for found, statement, node in mutants_of(file):
                if replace(found, file=mutant.file, line=mutant.line) == mutant:
                    return file, statement, node
    return None


def replaced(source: str, node: ast.expr, text: str) -> str:
    """Return a source with an expression replaced by a text."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = source.encode()
    return (data[:start] + b"(" + text.encode() + b")" + data[end:]).decode()


class LineContexts:
    """Pytest plugin: which test executes which lines, and how long each test takes."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Name the lines that a test executes after it."""
        self.measured.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of setup, call and teardown; note a test that fails by itself."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def run_tests(copy: Path, arguments: list[str], plugins: list[object] | None = None) -> int:
    """Run pytest in a copy of the tree and return its exit code; this process must be a fork."""
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)  # of the processes that tests start
    return pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=plugins)


def measure(copy: Path, folder: str, tests: str, output: Path) -> int:
    """Run the tests of a package once; write the tests of each line, the quickest first."""
    measured = coverage.Coverage(data_file=None, source=[str(copy / folder)], config_file=False)
    if folder.endswith(".py"):
        measured.set_option("run:include", [str(copy / folder)])
        measured.set_option("run:source", None)
    plugin = LineContexts(measured)
    measured.start()
    code = run_tests(copy, [tests], [plugin])
    measured.stop()
    data = measured.get_data()
    table = {}
    for path in data.measured_files():
        file = str(Path(path).resolve().relative_to(copy))
        for line, contexts in data.contexts_by_lineno(path).items():
            passed = [test for test in contexts if test and test not in plugin.failed]
            table[f"{file}:{line}"] = sorted(passed, key=plugin.seconds.__getitem__)
    output.write_text(json.dumps({"tests": table, "failed": sorted(plugin.failed)}))
    return code


def in_fork(action: Callable[[], int], log: Path, limit: float) -> int:
    """Run an action in a fork; return its exit code, or -9 if it took more seconds than `limit`."""
    if (child := os.fork()) == 0:
        os.setsid()
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = 70
        try:
            code = int(action())
        finally:
            os._exit(code)
    end = time.monotonic() + limit
    pid, status = 0, signal.SIGKILL.value
    while pid == 0 and time.monotonic() < end:
        time.sleep(0.02)
        pid, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests have left running, too
    if pid == 0:
        os.waitpid(child, 0)
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)


def copy_of_tree(folder: Path) -> Path:
    """Copy what git tracks, since tests read pages and configs, too."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, names.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return folder.resolve()


def outcome(mutant: Mutant, copy: Path, tests: dict[str, list[str]]) -> str:
    """Return "killed", "survived", "not executed" or "gone"."""
    if (place := located(mutant)) is None:
        return "gone"
    file, statement, node = place
    lines = [statement.lineno, *range(node.lineno, (node.end_lineno or node.lineno) + 1)]
    chosen = list(dict.fromkeys(test for line in lines for test in tests.get(f"{file}:{line}", [])))
    if not chosen:
        return "not executed"
    source = (copy / file).read_text()
    (copy / file).write_text(replaced(source, node, mutant.mutated))
    try:
        code = in_fork(lambda: run_tests(copy, ["-x", *chosen]), copy / "mutant.log", TIME_LIMIT)
    finally:
        (copy / file).write_text(source)
    return "survived" if code == 0 else "killed"


def run(output: Path, workers: int) -> None:
    """Run all mutants of the table, append each outcome to `output`, and print the share killed."""
    with TABLE.open(newline="") as file:
        rows = [
            {**row, "line": int(row["line"]), "ordinal": int(row["ordinal"])}
            for row in csv.DictReader(file)
        ]
    mutants = [Mutant(**row) for row in rows]
    os.environ.setdefault("CTRLREWARD_DATA", str(ROOT.parent / "shared" / "data"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # read at the import, as are those below
    os.environ["HF_HUB_OFFLINE"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"
    # Each fork has them without importing them again. No thread may run before a fork.
    for name in ("torch", "transformers", "peft", "pytorch_lightning", "scipy.stats", "hypothesis"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        copies = [copy_of_tree(folder / str(worker)) for worker in range(workers)]
        tests: dict[str, list[str]] = {}
        for package, (package_tests, _) in PACKAGES.items():
            table, log = folder / "lines.json", folder / "measured.log"
            action = partial(measure, copies[0], package, package_tests, table)
            if in_fork(action, log, 3600) not in (0, 1):
                raise SystemExit(f"{package_tests} can't be run:\n{log.read_text()[-3000:]}")
            measured = json.loads(table.read_text())
            tests |= measured["tests"]
            failed = ", ".join(measured["failed"]) or "none"
            print(f"{package_tests}: left out, as they fail without a mutant: {failed}", flush=True)
        children = []
        for worker, copy in enumerate(copies):
            if (child := os.fork()) == 0:
                for mutant in mutants[worker::workers]:
                    row = {**asdict(mutant), "outcome": outcome(mutant, copy, tests)}
                    with output.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
    report([output])


def report(outputs: list[Path]) -> None:
    """Print the outcomes by package; with two files, also the mutants whose outcome changed."""
    runs = []
    for path in outputs:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        runs.append({(r["file"], r["function"], r["original"], r["ordinal"]): r for r in rows})
    for key in [key for key in runs[0] if any(run[key]["outcome"] == "gone" for run in runs)]:
        for rows in runs:
            rows.pop(key)
    for path, rows in zip(outputs, runs, strict=True):
        print(f"{path.name}: {len(rows)} mutants that every run has")
        for package in PACKAGES:
            counts = Counter(r["outcome"] for r in rows.values() if r["file"].startswith(package))
            print(f"  {package:36} killed {counts['killed']:3} of {counts.total():3}", dict(counts))
        killed = sum(row["outcome"] == "killed" for row in rows.values())
        print(f"  killed {killed} of {len(rows)}: {killed / len(rows):.1%}")
    for key, row in runs[0].items():
        outcomes = [rows[key]["outcome"] for rows in runs]
        if len({outcome == "killed" for outcome in outcomes}) > 1:
            print(
                " -> ".join(outcomes),
                f"{row['file']}:{row['line']}",
                row["original"],
                "=>",
                row["mutated"],
            )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument(
        "--exclude", nargs="*", default=[], help="patterns of FILE or FILE:FUNCTION"
    )
    running = commands.add_parser("run")
    running.add_argument("--output", type=Path, default=Path("mutants.jsonl"))
    running.add_argument("--workers", type=int, default=2)
    commands.add_parser("report").add_argument("outputs", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        draw(arguments.count, arguments.exclude)
    elif arguments.command == "run":
        run(arguments.output, arguments.workers)
    else:
        report(arguments.outputs)


if __name__ == "__main__":
    main()
