"""Metrics on two CPU ranks with uneven shares; test_torchmetrics.py runs this script.

Each rank writes its values to a file.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch
from module_files import load
from torch.distributed import destroy_process_group, init_process_group
from torchmetrics import MetricCollection

from ctrlreward import Samples
from ctrlreward.adapters.torchmetrics import FailRate, ScoreMean, ScoreOfAll

shared = load(Path(__file__).with_name("conftest.py"))

TEXTS = ["ab", "f", "aab", "ab", "b€\u2028", "aab", "abcd"]
# For each rank, batches of indices into TEXTS; 0 occurs twice, as a sampler may repeat it.
SHARES = [[[0, 2], [4, 6]], [[1, 3], [5], [0]]]


def values(shares: list[list[int]]) -> dict[str, float]:
    letters, kinds = shared.Letters(), shared.Kinds()
    metrics = MetricCollection(
        {
            "share": ScoreMean(letters["share"]),
            "length": ScoreMean(letters["length"]),
            "fail_rate": FailRate(letters["share"]),
            "kinds": ScoreOfAll(kinds["kinds"]),
            "first": ScoreOfAll(kinds["first"]),
        }
    )
    without_ids = ScoreOfAll(kinds["kinds"])
    for rows in shares:
        samples = Samples([TEXTS[i] for i in rows], groups=["g"] * len(rows))
        metrics.update(samples, ids=rows)
        without_ids.update(samples)
    results = {name: value.item() for name, value in metrics.compute().items()}
    return {**results, "kinds without ids": without_ids.compute().item()}


def run(folder: Path, rank: int) -> None:
    init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    by_case = {"both": values(SHARES[rank]), "one rank empty": values(SHARES[0] if rank else [])}
    (folder / f"rank{rank}.json").write_text(json.dumps(by_case))
    destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(partial(run, Path(sys.argv[1])))
