"""Report of a run: the untuned policy compared with the selected one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from ctrlreward.arguments import counted, positive
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.judges import (
    AUC,
    Judge,
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


class BeforeAfterMixin(CallbackMixin):
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
        super().__init__()
        self.components = components_by_name(scores)
        self.samples = as_samples(samples)
        self.prompts = self.samples.as_prompts()
        self.generations_per_prompt = positive("generations_per_prompt", generations_per_prompt)
        self.seed = seed
        self.judges = judges_by_name(judges or {}, self.components)
        self._components = with_judges(self.components, self.judges)
        self.seconds: dict[str, float] = {}
        self._created = self._mark = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": {**self.seconds, "train": self._train_seconds()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds = dict(state_dict["seconds"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise if the trainer has no `RewardCheckpoint`, or the samples cannot be compared."""
        super().setup(trainer, pl_module, stage)
        check_columns(self._components, self.prompts)
        check_judges(self.judges.values(), self.prompts)
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
            self.seconds["start"] = time.perf_counter() - self._created
            self._measure(trainer, pl_module, "before")
        else:  # absent texts are an error now rather than after the training
            folder = Path(trainer.default_root_dir)
            on_rank_zero(lambda: self._scored(folder, "before"))
        self._mark = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate and score with the selected weights, and write the summary."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self.seconds["train"] = self._train_seconds()
        keeper = callbacks_of(trainer, SelectingCheckpointMixin)[0]
        path = keeper.best_model_path or keeper.last_model_path
        if not path:
            raise RuntimeError("training ended before the first validation. Validate more often.")
        if is_sharded(trainer):
            trainer.strategy.load_checkpoint(path, weights_only=True)
        else:
            state = torch.load(path, map_location=pl_module.device, weights_only=True)
            pl_module.load_state_dict(state["state_dict"], strict=False)
        self._measure(trainer, pl_module, "after")
        folder = Path(trainer.default_root_dir)

        def write() -> None:
            sets = {name: self._scored(folder, name) for name in ("before", "after")}
            facts = run_facts(trainer)
            write_comparison(folder, self.components, self.judges, sets, facts, self.seconds)

        on_rank_zero(write)

    def release(self) -> None:
        for component in self._components.values():
            component.scorer.release()

    def _train_seconds(self) -> float:
        return self.seconds.get("train", 0.0) + time.perf_counter() - self._mark

    def _measure(self, trainer: Trainer, module: LightningModule, name: str) -> None:
        """Generate, score and write the texts before or after training, and time it."""
        started = time.perf_counter()
        folder, repeats = Path(trainer.default_root_dir), self.generations_per_prompt
        whole = whole_weights(cast(torch.nn.Module, trainer.strategy.model))
        with eval_mode(module), trainer.precision_plugin.val_step_context(), torch.no_grad(), whole:
            generator = cast(Generator, module)
            texts = generate_across_ranks(generator, self.prompts, repeats, self.seed)

        def score_all() -> None:
            # Texts first, so that a failing scorer does not lose any.
            write_scored_samples(folder / f"{name}.jsonl", texts, {})
            self._scored(folder, name)

        on_rank_zero(score_all)
        self.seconds[name] = time.perf_counter() - started

    def _scored(self, folder: Path, name: str) -> tuple[Samples, dict[str, Scores]]:
        path = folder / f"{name}.jsonl"
        return scored_texts(path, self._components, self.seed, "default_root_dir")


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


def write_comparison(
    folder: Path,
    components: Mapping[str, Component],
    judges: Mapping[str, Judge],
    sets: Mapping[str, tuple[Samples, Mapping[str, Scores]]],
    facts: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> None:
    """Write and print the comparison of `BeforeAfter`.

    `sets` has `"before"` and `"after"` → texts and scores; `facts` are of `run_facts`.
    """
    specs = {f"score/{name}": component.spec for name, component in components.items()}
    specs |= {f"judges/{name}": judge.score.spec for name, judge in judges.items()}
    scores = {name: found for name, (_, found) in sets.items()}
    summary = {
        **comparison(components, judges, sets["after"][0], scores),
        **facts,
        "directions": {**facts["directions"], **{key: s.mode for key, s in specs.items()}},
        "ranges": {**facts["ranges"], **{key: s.bounds for key, s in specs.items()}},
        "seconds": {**seconds, "total": sum(seconds.values())},
    }
    write_whole(folder / "summary.json", json_text(without_nan(summary)))
    print(console_table(summary), flush=True)


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
