from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_choice import (
    GenerationScorer,
    HistoryLogger,
    MisconfigurationException,
    ModelCheckpoint,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)

from ctrlreward import Samples
from ctrlreward.files import JsonLog

CURVE = [0.0, 0.1, 0.2, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]


class Seen(pl.Callback):
    """Callback that records what others can read at the end of a validation."""

    def __init__(self, scorer: GenerationScorer) -> None:
        self.scorer = scorer
        self.rows: list[tuple[int, bool, int, float | None]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        value = trainer.callback_metrics.get("score/v")
        shown = None if value is None else round(value.item(), 3)
        state = self.scorer.has_new_scores, self.scorer.last_scored_step
        self.rows.append((trainer.global_step, *state, shown))


@pytest.fixture
def late(curve, watch) -> Callable[..., GenerationScorer]:
    """Function that builds a scorer that runs in the background."""

    def build(scorer: Any = None, **options: Any) -> GenerationScorer:
        scorer = scorer or curve(CURVE)
        scorer.draws = False
        return watch(scorer, overlap=True, **options)

    return build


@pytest.fixture
def threads() -> Callable[[], list[str]]:
    """Function that returns our new threads; scorers of other tests may hang in this process."""
    others = set(threading.enumerate())

    def names() -> list[str]:
        new = set(threading.enumerate()) - others
        return [t.name for t in new if t.name.startswith("ctrlreward")]

    return names


def test_training_continues_while_texts_are_scored(fit, counter, curve, late, threads) -> None:
    trained = threading.Event()

    class Module(counter):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if self.global_step == 1:
                trained.set()
            return super().training_step(batch, batch_idx)

    class Waiting(curve):
        def score_samples(self, samples: Samples) -> Any:
            assert trained.wait(20)  # by the step after the generation
            assert not torch.is_grad_enabled()
            return super().score_samples(samples)

    scorer = Waiting([0.25])
    fit(Module(), [late(scorer)], max_steps=2)
    assert len(scorer.scored) == 2
    assert threads() == []


@pytest.mark.lightning
def test_scores_are_logged_one_validation_late_under_their_own_step(
    fit, counter, late, tmp_path
) -> None:
    callback = late()
    seen = Seen(callback)
    logger = HistoryLogger(str(tmp_path))
    fit(counter(), [callback, seen], max_steps=4, logger=logger)
    assert seen.rows == [
        (1, False, -1, None),
        (2, True, 1, 0.1),
        (3, True, 2, 0.2),
        (4, True, 3, 0.5),
    ]
    rows = [row for row in JsonLog(logger.path).read() if "score/v" in row]
    assert [row["score/scored_step"] for row in rows] == [1, 2, 3, 4]  # the last one at the end
    assert [row["score/v"] for row in rows] == pytest.approx(CURVE[1:5])
    for step in range(1, 5):
        path = tmp_path / "samples" / "score" / f"step={step:06d}.jsonl"
        records = [json.loads(line) for line in path.open()]
        assert [record["scores"]["v"] for record in records] == [CURVE[step]] * 3
        assert all(f" at {step} " in record["text"] for record in records)


def test_every_nth_is_logged_at_the_next_validation(fit, counter, late) -> None:
    callback = late(every_n_validations=3)
    seen = Seen(callback)
    fit(counter(), [callback, seen], max_steps=8)
    assert [row for row in seen.rows if row[1]] == [(4, True, 3, 0.5), (7, True, 6, 0.2)]


def test_a_scorer_that_draws_while_loading_does_not_change_training(
    fit, counter, curve, late
) -> None:
    class DrawsInLoad(curve):
        loads = 0

        def load(self) -> None:
            self.loads += 1
            torch.rand(7)

        def score_samples(self, samples: Samples) -> Any:
            assert self.loads > 0
            return super().score_samples(samples)

    draws = []
    for callbacks in ([], [late(DrawsInLoad(CURVE))]):
        module = counter()
        pl.seed_everything(3, verbose=False)
        fit(module, callbacks)
        draws.append(module.draws)
    assert len(draws[0]) == 8
    assert draws[0] == draws[1]


@pytest.mark.parametrize(
    "keeper",
    [
        RewardCheckpoint("score/v"),
        RewardCheckpoint("held_out", "max", constraints={"score/fail_rate": (None, 0.1)}),
        ParetoCheckpoint({"held_out": "max", "score/v": "max"}),
        ModelCheckpoint(monitor="score/v", mode="max"),
    ],
)
def test_checkpoint_callbacks_cannot_monitor_a_late_score(fit, counter, late, keeper) -> None:
    with pytest.raises(MisconfigurationException, match=r"logged one validation late.*overlap=Fal"):
        fit(counter(), [late(), keeper])


@pytest.mark.lightning
@pytest.mark.parametrize("cut", [3, 5])
def test_a_resumed_run_makes_the_same_decisions(fit, counter, late, tmp_path, cut: int) -> None:
    def run(folder: Path, steps: int, **options: Any) -> tuple[Any, ...]:
        callback = late()
        stopper = RewardEarlyStopping("score/v", patience=3)
        guard = ProxyGuard("score/v", "score/fail_rate", held_out_mode="min")
        seen = Seen(callback)
        keeper = ModelCheckpoint(folder / "kept", save_last=True, save_on_train_epoch_end=False)
        callbacks = [callback, stopper, guard, seen, keeper]
        fit(counter(), callbacks, max_steps=steps, default_root_dir=folder, **options)
        return seen.rows, stopper.stopped_step, guard.state_dict()

    whole = run(tmp_path / "whole", 8)
    assert whole[1] == 7
    first, _, _ = run(tmp_path / "cut", cut)
    last = tmp_path / "cut" / "kept" / "last.ckpt"
    written = tmp_path / "cut" / "samples" / "score" / f"step={cut:06d}.jsonl"
    before = written.read_bytes()
    written.unlink()  # as if the run had been killed while scoring
    state = torch.load(last, weights_only=True)["callbacks"]
    pending = next(s["pending"] for k, s in state.items() if k.startswith("GenerationScorer"))
    assert pending["step"] == cut
    assert len(pending["columns"]["texts"]) == 3
    rest, *decisions = run(tmp_path / "cut", 8, ckpt_path=last)
    assert [first + rest, *decisions] == list(whole)
    assert written.read_bytes() == before


def test_a_run_without_overlap_writes_pending_texts(fit, counter, watch, late, tmp_path) -> None:
    trainer = fit(counter(), [late()], max_steps=2)
    trainer.save_checkpoint(tmp_path / "at2.ckpt")
    written = tmp_path / "samples" / "score" / "step=000002.jsonl"
    written.unlink()
    callback = watch(CURVE)
    seen = Seen(callback)
    fit(counter(), [callback, seen], max_steps=4, ckpt_path=tmp_path / "at2.ckpt")
    assert written.exists()
    assert seen.rows == [(3, True, 3, 0.5), (4, True, 4, 0.4)]


@pytest.mark.parametrize("fails_at", [2, 4])
def test_an_error_on_the_thread_ends_the_run(fit, counter, curve, late, threads, fails_at) -> None:
    """Raised at the next validation, or at the end of training after the last one."""
    scorer = curve(CURVE[:1])
    scorer.curve = {step: 0.5 for step in range(9) if step != fails_at}
    module = counter()
    with pytest.raises(KeyError):
        fit(module, [late(scorer)], max_steps=4)
    assert round(module.weight.item()) == min(fails_at + 1, 4)
    assert threads() == []
    assert scorer.releases == 1
