"""Rows per second, memory and restarts of `ctrlreward score` on corpora.

    python benchmarks/corpus_scoring.py                    # rates by workers, and peak memory
    python benchmarks/corpus_scoring.py --before FOLDER    # beside another version: its packages
    python benchmarks/corpus_scoring.py --kills            # runs that are killed, and whole ones

The texts are drawn from templates. The quick model is a TextCNN with random weights, which scores
some thousands of texts a second; the slow one, in the last form, is SmolLM2-135M on 500 texts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUBJECTS = "The soup|Our guide|This hotel|The garden|A long film|My order|The staff".split("|")
VERBS = "was|seemed|is|became|felt".split("|")
ENDS = "cold and late|warm and kind|worth the walk|a sad mistake|better than last year".split("|")
REST = "and we left early|so we came back|though nobody said so|as the rain set in".split("|")


def write_texts(path: Path, rows: int) -> None:
    """Write texts of some ten words, most of them distinct."""
    draw = random.Random(0)
    with open(path, "w") as file:
        for i in range(rows):
            text = " ".join(draw.choice(part) for part in (SUBJECTS, VERBS, ENDS, REST))
            file.write(
                json.dumps({"id": i, "label": "good", "text": f"{text}, number {i}."}) + "\n"
            )


def write_classifier(folder: Path) -> None:
    """Write a TextCNN with random weights."""
    import torch

    from ctrlreward.models.text_cnn import TextCNN, TextCNNConfig, save_text_cnn

    words = " ".join([*SUBJECTS, *VERBS, *ENDS, *REST]).lower().split()
    torch.manual_seed(0)
    save_text_cnn(TextCNN(TextCNNConfig(tuple(dict.fromkeys(words)), ("good", "bad"))), folder)


def quick(folder: Path) -> list[str]:
    """Return the options of the quick scorer."""
    return ["--scorers=Accuracy", f"--scorers.model={folder / 'cnn'}"]


def slow() -> list[str]:
    """Return the options of the slow scorer."""
    return ["--scorers=Perplexity", "--scorers.model=smollm2-135m", "--scorers.dtype=float32"]


def command(source: Path, output: Path, *options: str) -> list[str]:
    """Return the command that scores a file with one thread a worker."""
    return [sys.executable, "-m", "ctrlreward", "score", str(source), str(output), *options]


def run(arguments: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds and the peak MiB of its largest process."""
    started = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return time.perf_counter() - started, used.ru_maxrss / 1024


IN_PROCESS = """
import contextlib, io, sys, time
from pathlib import Path
import torch
from ctrlreward.commands.score import score_file
from ctrlreward.scorers import Accuracy
torch.set_num_threads(1)
folder, source = Path(sys.argv[1]), Path(sys.argv[2])
for line in sys.stdin:
    output = folder / "side.jsonl"
    output.unlink(missing_ok=True)
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        score_file(source, output, scorers=[Accuracy(str(folder / "cnn"))])
    print(time.perf_counter() - started, flush=True)
"""


def compare(folder: Path, source: Path, rows: int, before: Path, pairs: int) -> None:
    """Print rows per second of two versions in one process, in alternating runs."""
    sides = []
    for path in (before, None):
        environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
        own = folder / f"side{len(sides)}"
        own.mkdir()
        (own / "cnn").symlink_to(folder / "cnn")
        sides.append(
            subprocess.Popen(
                [sys.executable, "-c", IN_PROCESS, str(own), str(source)],
                env=environment,
                cwd=own,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )

    def seconds(side: subprocess.Popen[str]) -> float:
        assert side.stdin is not None
        assert side.stdout is not None
        side.stdin.write("go\n")
        side.stdin.flush()
        return float(side.stdout.readline())

    for side in sides:
        seconds(side)  # models, caches
    times = [(seconds(sides[0]), seconds(sides[1])) for _ in range(pairs)]
    ratios = sorted(old / new for old, new in times)
    middle = statistics.median(ratios)
    for name, position in (("before", 0), ("now", 1)):
        print(f"{name:8}{rows / statistics.median(t[position] for t in times):8.0f} rows/s")
    print(f"now / before: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} in {pairs} pairs)")
    for side in sides:
        side.kill()


def measure(folder: Path, rows: int) -> None:
    """Print the rate of commands with one and two workers, and the peak memory by rows."""
    few, many = folder / "few.jsonl", folder / "many.jsonl"
    write_texts(few, 1000)
    write_texts(many, rows)
    print(f"{'workers':>8}{'rows':>8}{'s':>8}{'peak MiB':>10}")
    for workers in (1, 2):
        options = [*quick(folder), f"--workers={workers}", "--threads=1"]
        for source, count in ((few, 1000), (many, rows)):
            taken, peak = run(command(source, folder / f"{workers}-{count}.jsonl", *options))
            print(f"{workers:8}{count:8}{taken:8.1f}{peak:10.1f}")
    same = (folder / f"1-{rows}.jsonl").read_bytes() == (folder / f"2-{rows}.jsonl").read_bytes()
    print(f"same bytes: {same}")


def children(pid: int) -> list[int]:
    """Return the processes below one, however deep."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                fields = (process / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found += [int(process.name), *children(int(process.name))]
    return found


def kill_at_random(
    folder: Path, name: str, rows: int, scorer: list[str], chunk: int, extra: list[str]
) -> None:
    """Score with two workers, kill one of them, and the command twice; compare with a whole run."""
    source, whole, output = (folder / f"{name}-{part}.jsonl" for part in ("in", "whole", "cut"))
    write_texts(source, rows)
    options = [*scorer, f"--chunk={chunk}", "--threads=1"]
    taken, _ = run(command(source, whole, *options))
    shards = -(-rows // chunk)
    draw = random.Random(name)
    for kill in ("command", "worker", "command", "nothing"):
        process = subprocess.Popen(
            command(source, output, *options, "--workers=2", *extra),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        partial = output.with_name(f"{output.name}.partial")
        done = len(list(partial.glob("*-*.json")))
        until = draw.randrange(done + 1, max(done + 2, shards - 2))
        while kill != "nothing" and process.poll() is None:
            if len(list(partial.glob("*-*.json"))) >= until:
                below = children(process.pid)
                target = process.pid if kill == "command" else max(below)
                os.kill(target, signal.SIGKILL)
                found = len(list(partial.glob("*-*.json")))
                print(f"{name}: killed a {kill} after {found} of {shards} shards", flush=True)
                break
            time.sleep(0.002)
        process.wait()
        if output.exists():
            break
    same = output.read_bytes() == whole.read_bytes()
    print(f"{name}: {rows} rows, uncut in {taken:.0f} s; same bytes after the kills: {same}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--before", type=Path, help="folder with another version of the package")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--engine", default="process", choices=["process", "ray"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_classifier(folder / "cnn")
        if options.before:
            write_texts(folder / "in.jsonl", options.rows)
            compare(folder, folder / "in.jsonl", options.rows, options.before, options.pairs)
        elif options.kills:
            extra = [f"--engine={options.engine}"]
            kill_at_random(folder, "quick", options.rows, quick(folder), 256, extra)
            kill_at_random(folder, "smollm2", 500, slow(), 16, extra)
        else:
            measure(folder, options.rows)


if __name__ == "__main__":
    main()
