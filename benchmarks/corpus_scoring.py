"""Rows per second, memory and restarts of `ctrlreward score` on corpora.

    python benchmarks/corpus_scoring.py                    # rates by workers, and peak memory
    python benchmarks/corpus_scoring.py --before FOLDER    # beside another version: its packages
    python benchmarks/corpus_scoring.py --kills            # runs that are killed, and whole ones
    python benchmarks/corpus_scoring.py --kills --engine ray  # actors on two node processes of Ray

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from ctrlreward.corpus.scoring_job import score_file
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


Kills = dict[str, Callable[[int], None]]
"""Name of what is killed → function of the command's process that kills it."""


def kill_command(pid: int) -> None:
    """Kill the command itself."""
    os.kill(pid, signal.SIGKILL)


@contextmanager
def processes() -> Iterator[tuple[list[str], Kills]]:
    """Yield the options of worker processes, and the kills of them."""

    def kill_worker(pid: int) -> None:
        os.kill(max(children(pid)), signal.SIGKILL)

    yield [], {"command": kill_command, "worker": kill_worker}


@contextmanager
def two_nodes() -> Iterator[tuple[list[str], Kills]]:
    """Yield the options of actors on two node processes of Ray, and the kills of them."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    from ray.cluster_utils import Cluster

    one = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**one, "include_dashboard": False})
    nodes = [cluster.add_node(**one)]

    def kill_actor(_: int) -> None:
        """Kill an actor, by its title; all processes of the nodes are children of this one."""
        for pid in children(os.getpid()):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::LoadedComponents"):
                os.kill(pid, signal.SIGKILL)
                return
        raise SystemExit("no actor is running")

    def kill_node(_: int) -> None:
        """Kill the second node, with its actor, and start another."""
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        nodes.append(cluster.add_node(**one))

    try:
        yield (
            ["--engine=ray", f"--ray.address={cluster.address}"],
            {"command": kill_command, "actor": kill_actor, "node": kill_node},
        )
    finally:
        cluster.shutdown()


def kill_at_random(
    folder: Path,
    name: str,
    rows: int,
    scorer: list[str],
    chunk: int,
    extra: list[str],
    kills: Kills,
) -> None:
    """Score with two workers, kill each at a random point, and compare with an uncut run.

    The first kill ends the command, which is started again; the others are kills of its workers.
    """
    source, whole, output = (folder / f"{name}-{part}.jsonl" for part in ("in", "whole", "cut"))
    write_texts(source, rows)
    options = [*scorer, f"--chunk={chunk}", "--threads=1"]
    taken, _ = run(command(source, whole, *options))
    partial = output.with_name(f"{output.name}.partial")
    shards = -(-rows // chunk)
    points = sorted(random.Random(name).sample(range(1, shards - 2), len(kills)))
    process: subprocess.Popen[bytes] | None = None
    for (what, kill), point in zip(kills.items(), points, strict=True):
        if process is None or process.poll() is not None:
            process = subprocess.Popen(
                command(source, output, *options, "--workers=2", *extra),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        while (done := len(list(partial.glob("*-*.json")))) < point:
            if process.poll() is not None:
                raise SystemExit(f"{name}: the command ended with {process.returncode}")
            time.sleep(0.002)
        kill(process.pid)
        print(f"{name}: killed the {what} after {done} of {shards} shards", flush=True)
        if kill is kill_command:
            process.wait()
    assert process is not None
    if process.wait():
        raise SystemExit(f"{name}: the command ended with {process.returncode}")
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
            engine = two_nodes if options.engine == "ray" else processes
            with engine() as (extra, kills):
                kill_at_random(folder, "quick", options.rows, quick(folder), 256, extra, kills)
                kill_at_random(folder, "smollm2", 500, slow(), 16, extra, kills)
        else:
            measure(folder, options.rows)


if __name__ == "__main__":
    main()
