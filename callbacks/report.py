"""Report of a run: the untuned policy compared with the selected one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from ctrlreward.arguments import counted, positive
from ctrlreward.callbacks.base_callback import LOADED_STEP, CallbackMixin
from ctrlreward.callbacks.judges import (
    AUC,
    check_judges,
    comparison,
    judges_by_name,
    with_judges,
)
from ctrlreward.callbacks.monitoring import known_modes, scored_specs
from ctrlreward.callbacks.saving import SelectingCheckpointMixin
from ctrlreward.callbacks.stopping import stopped_by
from ctrlreward.completion import (
    Generator,
    eval_mode,
    fixed_randomness,
    generate_across_ranks,
    mismatch,
    unclear_input,
)
from ctrlreward.files import json_text, without_nan, write_whole
from ctrlreward.held_out import components_by_name
from ctrlreward.lightning_package import LightningModule, Trainer, callbacks_of, is_sharded
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Component, Scores, check_columns, score
from ctrlreward.scorers.components import ComponentLike
from ctrlreward.scorers.records import explain_some, read_scored_file, write_scored_samples
from ctrlreward.selection.best import LAST_STEP, BestRule
from ctrlreward.selection.decider import Keeps
from ctrlreward.sharded_weights import whole_weights


class Comparison:
    """Scores and judges of `BeforeAfter` under any trainer, and the texts in its folder."""

    setting = "default_root_dir"  # argument of the trainer that names the folder

    def __init__(
        self,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int,
        seed: int,
        judges: Mapping[str, ComponentLike | AUC] | None,
    ) -> None:
        super().__init__()  # a callback also inherits from another class
        self.components = components_by_name(scores)
        self.samples = as_samples(samples)
        self.prompts = self.samples.as_prompts()
        self.generations_per_prompt = positive("generations_per_prompt", generations_per_prompt)
        self.seed = seed
        self.judges = judges_by_name(judges or {}, self.components)
        self.folder = Path()
        self.seconds: dict[str, float] = {}
        self._components = with_judges(self.components, self.judges)
        self._mark, self._trained = time.perf_counter(), 0.0  # seconds before a resume

    def check(self) -> None:
        """Raise a ValueError if the samples cannot be scored and compared."""
        check_columns(self._components, self.prompts)
        check_judges(self.judges.values(), self.prompts)

    def begin(self, resumed: bool, generate: Callable[[], Samples]) -> None:
        """Measure the untuned policy; absent texts of a resumed run are an error now."""
        if resumed:
            on_rank_zero(lambda: self._scored("before"))
        else:
            self._measure("before", generate)
        self._mark, self._trained = time.perf_counter(), self.seconds.get("train", 0.0)

    def train_seconds(self) -> float:
        """Return the seconds of training so far."""
        return self._trained + time.perf_counter() - self._mark

    def end(self, generate: Callable[[], Samples], facts: Callable[[], Mapping[str, Any]]) -> None:
        """Measure the policy after training; write and print the comparison, with `facts`."""
        self.seconds["train"] = self.train_seconds()
        self._measure("after", generate)
        on_rank_zero(lambda: self._write(facts()))

    def release(self) -> None:
        """Free the scorers' models."""
        for component in self._components.values():
            component.scorer.release()

    def _measure(self, name: str, generate: Callable[[], Samples]) -> None:
        started = time.perf_counter()
        texts = generate()

        def score_all() -> None:
            # Texts first, so that a failing scorer does not lose any.
            write_scored_samples(self.folder / f"{name}.jsonl", texts, {})
            self._scored(name)

        on_rank_zero(score_all)
        self.seconds[name] = time.perf_counter() - started

    def _scored(self, name: str) -> tuple[Samples, dict[str, Scores]]:
        path = self.folder / f"{name}.jsonl"
        return scored_texts(path, self._components, self.seed, self.setting)

    def _write(self, facts: Mapping[str, Any]) -> None:
        sets = {name: self._scored(name) for name in ("before", "after")}
        specs = {f"score/{name}": component.spec for name, component in self.components.items()}
        specs |= {f"judges/{name}": judge.score.spec for name, judge in self.judges.items()}
        scores = {name: found for name, (_, found) in sets.items()}
        summary = {
            **comparison(self.components, self.judges, sets["after"][0], scores),
            **facts,
            "directions": {**facts["directions"], **{key: s.mode for key, s in specs.items()}},
            "ranges": {**facts["ranges"], **{key: s.bounds for key, s in specs.items()}},
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
        }
        write_whole(self.folder / "summary.json", json_text(without_nan(summary)))
        print(console_table(summary), flush=True)


class BeforeAfterMixin(Comparison, CallbackMixin):
    """Compares the policy that `RewardCheckpoint` selected with the untuned policy.

    Generates and scores texts before the first step, and again with the selected weights when
    training has ended; the module keeps these weights. The trainer needs a `RewardCheckpoint`.
    Prints a table.

    Writes to the trainer's `default_root_dir`: `before.jsonl` and `after.jsonl`, texts with scores
    and judges, eight of them with explanations; and `summary.json`: of each score and judge the
    mean or AUC before and after, the difference with a 95 % interval (paired bootstrap over groups
    of samples) and the number of failed texts; steps, selection, directions and seconds. A resumed
    run reads `before.jsonl` back, and computes missing scores and judges.

    Args:
        scores: As in `HeldOutScorer`, like the next three; differences are of the first one.
        samples: Prompts that neither training nor selection uses.
        judges: Name → a score that the reward and the selection do not use, compared by its mean,
            or an `AUC`.

    Examples:
        >>> from ctrlreward import LexiconSentiment
        >>> from ctrlreward.callbacks import BeforeAfter, RewardCheckpoint
        >>> scores = {"positive": LexiconSentiment()["polarity"]}
        >>> report = BeforeAfter(scores, ["The soup", "The view"])
        >>> callbacks = [RewardCheckpoint("score/positive"), report]  # and a GenerationScorer
    """

    def __init__(
        self,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int = 4,
        seed: int = 1,
        judges: Mapping[str, ComponentLike | AUC] | None = None,
    ) -> None:
        super().__init__(scores, samples, generations_per_prompt, seed, judges)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": {**self.seconds, "train": self.train_seconds()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds = dict(state_dict["seconds"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise if the trainer has no `RewardCheckpoint`, or the samples cannot be compared."""
        super().setup(trainer, pl_module, stage)
        self.check()
        self.folder = Path(trainer.default_root_dir)
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.refuse(mismatch(pl_module, self.samples))
            if not callbacks_of(trainer, SelectingCheckpointMixin):
                self.refuse("the trainer needs a RewardCheckpoint, whose policy is compared")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that an encoder-decoder's input is separate from the beginning of its output."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.refuse(unclear_input(pl_module, self.samples))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate and score with the untuned policy, unless the run is resumed."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if trainer.global_step == 0:
            self.seconds["start"] = time.perf_counter() - self._mark
        self.begin(trainer.global_step > 0, lambda: self._generate(trainer, pl_module))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate and score with the selected weights, and write the summary."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        keeper = callbacks_of(trainer, SelectingCheckpointMixin)[0]
        path = keeper.best_model_path or keeper.last_model_path
        if not path:
            raise RuntimeError("training ended before the first validation. Validate more often.")
        if is_sharded(trainer):
            trainer.strategy.load_checkpoint(path, weights_only=True)
        else:
            state = torch.load(path, map_location=pl_module.device, weights_only=True)
            pl_module.load_state_dict(state["state_dict"], strict=False)
        if keeper.best_model_path:
            vars(pl_module)[LOADED_STEP] = keeper.selected_step
        self.end(lambda: self._generate(trainer, pl_module), lambda: run_facts(trainer))

    def _generate(self, trainer: Trainer, module: LightningModule) -> Samples:
        whole = whole_weights(cast(torch.nn.Module, trainer.strategy.model))
        generator, repeats = cast(Generator, module), self.generations_per_prompt
        with eval_mode(module), trainer.precision_plugin.val_step_context(), torch.no_grad(), whole:
            return generate_across_ranks(generator, self.prompts, repeats, self.seed)


def run_facts(trainer: Trainer) -> dict[str, Any]:
    """Return the entries of `summary.json` that no score changes: steps, choice, directions."""
    keeper = callbacks_of(trainer, SelectingCheckpointMixin)[0]
    best = keeper.best_adapter_path or keeper.best_model_path or keeper.last_model_path
    return {
        "steps": trainer.global_step,
        "stopped_by": stopped_by(trainer),
        "best_checkpoint": str(best),
        "constraints_met": bool(keeper.best_model_path),
        "selection": selection_facts(keeper, keeper.monitor, {}),
        "directions": known_modes(trainer),
        "ranges": {key: spec.bounds for key, spec in scored_specs(trainer).items()},
    }


def selection_facts(
    keeper: Keeps | None, monitor: str | None, names: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a checkpoint callback selected and how; `names` are other names of keys."""
    rule = keeper.rule if keeper else None
    best = rule if isinstance(rule, BestRule) else None
    bounds = best.constraints if best else {}
    return {
        "monitor": monitor and names.get(monitor, monitor),
        "step": keeper.selected_step if keeper else None,
        "constraints": {names.get(key, key): list(pair) for key, pair in bounds.items()},
        "top_k": best and best.top_k,
        "level": best and best.level,
        "reason": keeper.reason if keeper else "",
    }


def scored_texts(
    path: Path, components: Mapping[str, Component], seed: int, setting: str
) -> tuple[Samples, dict[str, Scores]]:
    """Read texts and scores back and add missing scores, with explanations of eight texts.

    `setting` names the folder in errors.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist, which BeforeAfter wrote before the first step. Resume with "
            f"the {setting} of that time."
        )
    texts, scores, _, told, _ = read_scored_file(path)
    missing = {key: each for key, each in components.items() if key not in scores}
    if missing:
        with fixed_randomness(seed):
            result = score(missing, texts)
            scores |= result.warned()
            reasons = {**told, **result.reasons}
            # Kept if an explanation fails.
            write_scored_samples(path, texts, scores, reasons=reasons)
            explained = explain_some(components, texts)
            write_scored_samples(path, texts, scores, None, explained, reasons)
    return texts, scores


def console_table(report: Mapping[str, Any]) -> str:
    """Return means and judges before and after side by side, and differences."""
    columns = {side: report[side] for side in ("before", "after")}
    judges: Mapping[str, Any] = report["judges"]
    names = [name for name in report["before"] if name != "generations"]
    rows = {name: [column[name] for column in columns.values()] for name in names}
    rows |= {f"judge {name}": [judge[side] for side in columns] for name, judge in judges.items()}
    width = max(24, *map(len, rows)) + 2
    lines = [" " * width + "".join(f"{name:>12}" for name in columns)]
    lines += [f"{n:{width}}" + "".join(f"{v:12,.3f}" for v in row) for n, row in rows.items()]
    for name, entry in {report["score"]: report, **judges}.items():
        low, high = entry["difference_ci95"]
        what = f"{entry['difference']:+,.3f} (95 % interval {low:+,.3f} to {high:+,.3f})"
        lines.append(f"{name}, after - before: {what}")
    best = report["best_checkpoint"]
    what = "best checkpoint" if report["constraints_met"] else "NO CHECKPOINT QUALIFIED, last one"
    what = "weights after training" if best == LAST_STEP else what
    steps, seconds = counted(report["steps"], "step"), report["seconds"]["total"]
    lines.append(f"{steps} in {seconds:.0f} s; stopped by {report['stopped_by']}")
    return "\n".join([*lines, f"{what}: {best}"])
