"""The cost model of docs/scale.md against its simulation, closed forms and the page."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cost() -> Any:
    path = ROOT / "benchmarks" / "studies" / "corpus_cost.py"
    spec = importlib.util.spec_from_file_location("corpus_cost", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["corpus_cost"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 1_000),
        ({"death_rate": 1 / 500, "restart": 60.0}, 1_000),  # a third of the time is lost
        ({"death_rate": 1 / 500, "restart": 0.0, "overhead": 20.0}, 5_000),
        ({"seconds": 1e-5}, 1_000),  # the driver is the bottleneck
        ({"workers": 1, "death_rate": 1 / 2_000}, 10_000),
    ],
)
def test_the_model_is_the_simulation(cost: Any, changes: dict[str, Any], size: int) -> None:
    given = {"workers": 8, "seconds": 1e-2, "startup": 30.0, "texts": 2_000_000, **changes}
    job = cost.Job(**given)
    expected = cost.expected_cost(job, size).hours
    runs = [cost.simulated_hours(job, size, seed) for seed in range(8)]
    assert np.mean(runs) == pytest.approx(expected, rel=0.03)


def test_one_worker_without_deaths_is_a_sum(cost: Any) -> None:
    cost_of = cost.Job(texts=1_000, workers=1, seconds=0.5, overhead=2.0, startup=7.0, read=0.0)
    cost_of = replace(cost_of, handling=0.0)
    assert cost.expected_cost(cost_of, 100).hours * 3600 == pytest.approx(7 + 10 * 52)


@pytest.mark.parametrize("rate", [1e-6, 1e-4, 1e-3])
def test_no_other_size_of_shards_costs_less(cost: Any, rate: float) -> None:
    job = cost.Job(seconds=1e-3, overhead=0.5, death_rate=rate)
    sizes = np.geomspace(10, 1e8, 4_001)
    per_text = [
        cost.shard_seconds(job, s) / s if rate * s * job.seconds < 100 else np.inf for s in sizes
    ]
    best = sizes[int(np.argmin(per_text))]
    assert cost.best_size(job) == pytest.approx(best, rel=0.05)
    assert math.isinf(cost.best_size(replace(job, death_rate=0.0)))


def test_the_page_has_the_table_of_rates(cost: Any) -> None:
    page = (ROOT / "docs" / "scale.md").read_text("utf-8")
    assert "\n".join(cost.rate_table()) in page


def test_the_page_has_the_model_of_its_tables(cost: Any) -> None:
    page = (ROOT / "docs" / "scale.md").read_text("utf-8")
    for model, tokens, hours in cost.SHOWN:
        job = cost.job_of(model, tokens, hours)
        for size in cost.SIZES:
            found = cost.expected_cost(job, size)
            assert f"| {size:,} | {found.hours:.2f} | " in page
            assert f" | {found.gpu_hours:,.0f} | {found.around:.2%} | {found.lost:.2%} |" in page
