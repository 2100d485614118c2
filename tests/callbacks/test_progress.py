"""RewardProgressBar in runs whose steps and validations take as long as a clock says."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_choice import (
    LIGHTNING,
    BeforeAfter,
    GenerationScorer,
    MisconfigurationException,
    RewardCheckpoint,
    RewardEarlyStopping,
    RewardProgressBar,
    Timer,
    pl,
)
from terminals import in_terminal
from warm_python import run_warm

from ctrlreward import Samples
from ctrlreward import progress as displays
from ctrlreward.callbacks import progress

CURVE = [0.0, 0.5, 0.75, 0.75, 0.5, 0.5, 0.5, 0.5, 1.0]
STEP, VALIDATION, GENERATION = 20.0, 4.0, 16.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time of the displays, the progress bar and Lightning's timer; `now` may be changed."""
    clock = SimpleNamespace(now=1000.0)
    stand_in = SimpleNamespace(monotonic=lambda: clock.now, strftime=lambda form: "12:00:00")
    for module in (displays, progress, sys.modules[Timer.__module__]):
        monkeypatch.setattr(module, "time", stand_in)
    return clock


@pytest.fixture
def slow(counter: type[pl.LightningModule], clock: SimpleNamespace) -> type[pl.LightningModule]:
    """Module that takes 20 s for a step, 4 s for a validation and 16 s for three texts."""

    class Slow(counter):  # type: ignore[misc, valid-type]
        def training_step(self, *args: Any) -> Any:
            clock.now += STEP
            loss = super().training_step(*args)
            self.log("reward/total", float(self.weight) / 8, prog_bar=True)
            return loss

        def validation_step(self, *args: Any) -> None:
            clock.now += VALIDATION

        def complete(self, prompts: Sequence[str]) -> list[str]:
            clock.now += GENERATION
            return super().complete(prompts)

    return Slow


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Function that returns the lines of the progress bar since the last call."""

    def read() -> list[str]:
        err = capsys.readouterr().err
        assert "\r" not in err
        assert "\x1b" not in err
        return [line.split(" ", 1)[1] for line in err.splitlines() if line[:8] == "12:00:00"]

    return read


def trained(fit, module: pl.LightningModule, *others: Any, **options: Any) -> Any:
    options = {"val_check_interval": 2, "enable_progress_bar": True, **options}
    return fit(module, [RewardProgressBar(), *others], **options)


@pytest.mark.lightning
def test_phase_step_metrics_and_time_left(fit, slow, lines) -> None:
    trained(fit, slow(), max_steps=4)
    first, second, third = "reward/total 0", "reward/total 0.125", "reward/total 0.25"
    assert lines() == [
        "start: step 0 of 4, time left unknown",
        "training: step 0 of 4, time left unknown",
        f"training: step 1 of 4, {first}, 1 min 0 s left",
        f"training: step 2 of 4, {second}, 40 s left",
        f"validation: step 2 of 4, {second}, 40 s left",
        f"training: step 2 of 4, {second}, 44 s left",  # 44 s for two steps and a validation
        f"training: step 3 of 4, {third}, 21 s left",
        "training: step 4 of 4, reward/total 0.375, 0 s left",
        "validation: step 4 of 4, reward/total 0.375, 0 s left",
        "training: step 4 of 4, reward/total 0.375, 0 s left",
        "end: step 4, reward/total 0.375, 0 s left",
        "stopped at step 4 after 1 min 28 s: max_steps",
    ]


@pytest.mark.lightning
@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({"max_steps": 5}, "5"),
        ({"max_steps": 50, "max_epochs": 1}, "8"),  # the module has eight batches
        ({"max_steps": -1, "max_epochs": 2}, "16"),
        ({"max_steps": 50, "max_epochs": 3, "accumulate_grad_batches": 4}, "6"),
        ({"max_steps": 50, "max_epochs": 1, "limit_train_batches": 3}, "3"),
        ({"max_steps": 50, "max_time": {"seconds": 90}}, "about 5"),  # 20 s each
        ({"max_steps": 4, "max_time": {"seconds": 90}}, "4"),
        ({"max_steps": -1, "max_epochs": -1, "max_time": {"seconds": 41}}, "about 3"),
    ],
)
def test_steps_are_counted_up_to_the_first_limit(limits, steps: str, fit, slow, lines) -> None:
    trainer = trained(fit, slow(), limit_val_batches=0, **limits)
    said = [line for line in lines() if line.startswith("training: step 1 ")]
    assert said[0].startswith(f"training: step 1 of {steps}, ")
    assert trainer.global_step == int(steps.split()[-1])


def test_the_time_left_is_not_more_than_max_time_leaves(fit, slow, lines) -> None:
    trained(fit, slow(), limit_val_batches=0, max_steps=9, max_time={"seconds": 70})
    said = [line for line in lines() if line.startswith("training")]
    assert [line.rsplit(", ", 1)[1] for line in said] == [
        "time left unknown", "50 s left", "30 s left", "10 s left", "0 s left",
    ]  # fmt: skip
    assert said[0] == "training: step 0 of at most 9, time left unknown"
    assert said[-1].startswith("training: step 4 of about 4, ")


def test_a_module_that_optimises_by_itself(fit, slow, lines) -> None:
    class TwoUpdates(slow):  # type: ignore[misc, valid-type]
        automatic_optimization = False

        def training_step(self, *args: Any) -> None:
            super().training_step(*args)
            for _ in range(2):
                self.optimizers().step()

    trained(fit, TwoUpdates(), limit_val_batches=0, max_steps=-1, max_epochs=1)
    assert "training: step 2 of 16, reward/total 0, 2 min 20 s left" in lines()


# With other callbacks


@pytest.fixture
def report(curve: type[Any]) -> list[Any]:
    """Callbacks that score, select and report."""
    samples = Samples(["The soup", "The room", "The band"])
    scores = {"value": curve(CURVE)["value"]}
    return [
        GenerationScorer(scores, samples),
        RewardCheckpoint("score/value"),
        BeforeAfter(scores, samples, generations_per_prompt=1),
    ]


def test_the_phase_after_training_takes_as_long_as_the_one_before(
    report, fit, slow, clock, lines, monkeypatch
) -> None:
    stand_in = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(sys.modules[BeforeAfter.__mro__[1].__module__], "time", stand_in)
    trained(fit, slow(), *report, max_steps=2)
    said = lines()
    phases = list(dict.fromkeys(line.split(":")[0] for line in said))
    assert phases == [
        "start",
        "before",
        "training",
        "validation",
        "after",
        "stopped at step 2 after 1 min 32 s",
    ]
    by_phase = {line.split(":")[0]: line for line in said}
    before = [line for line in said if line.startswith("before")]
    unknown = "before: step 0 of 2, time left unknown"
    generated = [unknown, f"{unknown} | generating 3 texts", f"{unknown} | scoring 3 texts"]
    assert [line for line in generated if line in before] == generated
    assert "training: step 1 of 2, reward/total 0, 36 s left" in said  # a step and the report
    assert by_phase["training"].endswith("score/value 0.75, 16 s left")
    assert "after: step 2, reward/total 0.125, score/value 0.75, 16 s left" in said


@pytest.mark.lightning
def test_a_resumed_run_goes_on_counting(report, fit, slow, lines, tmp_path: Path) -> None:
    trained(fit, slow(), *report, max_steps=2)
    lines()
    (last,) = tmp_path.rglob("last.ckpt")
    trained(fit, slow(), *report, max_steps=4, ckpt_path=last)
    said = lines()
    assert "resumed after step 2" in said
    assert not any(line.startswith("before") for line in said)
    assert any(re.match(r"training: step 3 of 4, .*, \d+ s left", line) for line in said)
    assert said[-1].startswith("stopped at step 4 after ")


def test_the_last_line_says_why_a_run_stopped_early(report, fit, slow, lines) -> None:
    stopper = RewardEarlyStopping("score/value", patience=2)
    trained(fit, slow(), stopper, *report, val_check_interval=1)
    *_, last = lines()
    assert last.startswith("stopped at step 4 after ")
    assert ": RewardEarlyStopping: score/value has not improved" in last


def test_the_last_line_names_an_exception(fit, slow, lines) -> None:
    class Failing(slow):  # type: ignore[misc, valid-type]
        def validation_step(self, *args: Any) -> None:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        trained(fit, Failing())
    assert lines()[-1] == "stopped at step 2 after 40 s: RuntimeError"
    trained(fit, slow(), max_steps=1)  # its display is gone
    assert lines()[-1].startswith("stopped at step 1")


def test_fast_validations_are_announced_once(fit, counter, clock, lines) -> None:
    trained(fit, counter(), val_check_interval=1)
    assert [line.split(":")[0] for line in lines()] == [
        "start", "training", "validation", "end", "stopped at step 8 after 0 s",
    ]  # fmt: skip


def test_a_validation_of_its_own_and_a_sanity_check(fit, slow, lines) -> None:
    trainer = trained(fit, slow(), max_steps=1, num_sanity_val_steps=1)
    assert "sanity check: step 0 of 1, time left unknown" in lines()[:3]
    trainer.validate(slow(), verbose=False)
    assert lines() == ["validation"]


@pytest.mark.lightning
def test_it_replaces_the_bar_of_lightning(fit, slow) -> None:
    trainer = trained(fit, slow(), max_steps=1)
    bars = [c for c in trainer.callbacks if isinstance(c, pl.callbacks.ProgressBar)]
    assert [type(bar) for bar in bars] == [RewardProgressBar]
    with pytest.raises(MisconfigurationException, match="enable_progress_bar=False"):
        trained(fit, slow(), enable_progress_bar=False)


def test_a_bar_that_was_disabled_shows_nothing(fit, slow, lines) -> None:
    bar = RewardProgressBar()
    bar.disable()
    fit(slow(), [bar], enable_progress_bar=True)
    assert lines() == []
    bar.enable()
    fit(slow(), [bar], enable_progress_bar=True)
    assert lines()


# In other processes

RUN = f"""
import sys
from {LIGHTNING} import Trainer
from {LIGHTNING}.demos.boring_classes import BoringModel
from {RewardProgressBar.__module__} import RewardProgressBar

def run(rank=0, **options):
    options |= dict(accelerator="cpu", logger=False, enable_checkpointing=False)
    options |= dict(enable_model_summary=False, max_steps=4, num_sanity_val_steps=0)
    Trainer(callbacks=[RewardProgressBar()], **options).fit(BoringModel())
"""


def test_a_terminal_shows_the_run(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    slowly = "import time\nBoringModel.on_train_batch_end = lambda *_: time.sleep(0.6)"
    script.write_text(f"{RUN}\n{slowly}\nrun()")
    screen, whole = in_terminal(lambda: runpy.run_path(str(script)))
    assert re.search(r"training ━+.* step 2 of 4, \d s left", whole)
    assert re.fullmatch(r"\d\d:\d\d:\d\d stopped at step 4 after \d+ s: max_steps", screen[-1])
    assert not any("━" in line for line in screen)


def test_two_ranks_show_one_progress(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    call = "on_two_ranks(lambda rank: run(rank, devices=2, strategy='ddp'))"
    script.write_text(f"{RUN}\nfrom forked_ranks import on_two_ranks\n{call}")
    done = run_warm(script, timeout=120)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^\d\d:\d\d:\d\d (\w+)", done.stderr, re.M)
    assert said == ["start", "training", "end", "stopped"]
