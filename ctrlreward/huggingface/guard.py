"""Detection of reward hacking: the proxy rises while held-out metrics decline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from ctrlreward.arguments import Mode, checked_keywords
from ctrlreward.huggingface.decision import DecisionCallback
from ctrlreward.huggingface.generation import wandb_run
from ctrlreward.huggingface.run_state import PREFIX, resolve_mode
from ctrlreward.selection import AlarmRule, AlarmState
from ctrlreward.selection.alarm import WINDOW, AlarmDecision, HeldOutMode, Reference


@checked_keywords(
    monitor="proxy and held_out",
    mode="proxy_mode and held_out_mode",
    patience="window",
    alpha="level",
)
class ProxyGuard(DecisionCallback):
    """Alarm on reward hacking: the optimised metric improves while a held-out metric declines.

    Decides by `ctrlreward.selection.AlarmRule`. Adds `eval_<name>/p_value` and `eval_<name>/alarm`
    (1 or 0) to the metrics of the evaluation and to `log_history`. When an alarm begins, a warning
    is logged, and the Weights & Biases run gets an alert. To exclude checkpoints under alarm, add
    `RewardCheckpoint(..., constraints={"guard/alarm": (None, 0)})` after this callback.

    Args:
        proxy: Key of the optimised metric: `"reward"`, as TRL logs it, or a loss.
        held_out: Key of a metric that is not optimised, several keys, or key → "max" if higher is
            better, "min" if lower is better, "drift" if any change is a decline.
        proxy_mode: "max" or "min". Defaults to the direction that a `GenerationScorer` declares, to
            "max" for `reward` and `rewards/…`, and to "min" for a loss.
        held_out_mode: The same for held-out metrics without a direction; or "drift".
        window: Without scores by prompt, number of evaluations per test, 4 to 16.
        level: Probability of a false alarm in the whole run, by default 0.05. Without scores by
            prompt, the level of each test, by default 0.01.
        stop: Stop training at an alarm.
        name: Prefix of the keys.
        reference: Evaluation to compare with: "first", or "best", the one with the best held-out
            mean so far, which notices a decline after a rise.
        margin: Smallest decline that matters, in units of the metric, or held-out key → decline.
            Defaults to a tenth of the standard deviation between prompts.

    Attributes:
        state: The `AlarmState`: `alarm`, `alarm_step`; None before the first evaluation.

    Raises:
        ValueError: A setting is out of range; after the first evaluation: a key is not logged, or
            its direction is unknown.

    Examples:
        >>> guard = ProxyGuard("reward", ["score/independent", "score/distinct_2"])
        >>> guard.state is None
        True
    """

    def __init__(
        self,
        proxy: str,
        held_out: str | Sequence[str] | Mapping[str, HeldOutMode],
        proxy_mode: Mode | None = None,
        held_out_mode: HeldOutMode | None = None,
        window: int = WINDOW,
        level: float | None = None,
        stop: bool = False,
        name: str = "guard",
        reference: Reference = "first",
        margin: float | Mapping[str, float] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "window": window,
            "level": level,
            "reference": reference,
            "margin": margin,
        }
        modes = proxy_mode or "max", held_out_mode or "max"
        keys = AlarmRule(proxy, held_out, *modes, **self._settings).modes
        super().__init__(f"{proxy} {', '.join(keys)}", AlarmState)
        self.proxy, self.held_out = proxy, held_out
        self.proxy_mode, self.held_out_mode = proxy_mode, held_out_mode
        self.stop = stop
        self.name = name

    def rule(self, state: TrainerState) -> AlarmRule:
        """Return the rule."""
        keys = [self.held_out] if isinstance(self.held_out, str) else self.held_out
        given = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, self.held_out_mode)
        modes: dict[str, HeldOutMode] = {
            key: mode if mode == "drift" else resolve_mode(state, key, mode, "held_out_mode")
            for key, mode in given.items()
        }
        is_reward = self.proxy == "reward" or self.proxy.startswith("rewards/")
        proxy_mode: Mode | None = "max" if is_reward and not self.proxy_mode else self.proxy_mode
        proxy_mode = resolve_mode(state, self.proxy, proxy_mode, "proxy_mode")
        return AlarmRule(self.proxy, modes, proxy_mode, **self._settings)

    def resume(self, rule: AlarmRule, state: TrainerState) -> bool:
        """Return whether an alarm had stopped the run, and would with these settings."""
        self.state, decision = rule.resume(self.state, state.global_step)
        return self.stop and decision.alarm

    def act(
        self,
        decision: AlarmDecision,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
    ) -> None:
        """Log the test, warn when an alarm begins, and stop training if asked to."""
        if decision.p_value is None:
            return
        row = {
            f"{PREFIX}{self.name}/alarm": float(decision.alarm),
            f"{PREFIX}{self.name}/p_value": decision.p_value,
        }
        metrics.update(row)
        state.log_history.append({**row, "step": state.global_step})
        run = wandb_run(args) if state.is_world_process_zero else None
        if run is not None:
            shown = {key.replace(PREFIX, "eval/", 1): value for key, value in row.items()}
            run.log({**shown, "train/global_step": state.global_step})
        if decision.alarm and not (self.previous and self.previous.alarm):
            self.say(state, decision.reason)
            if run is not None:
                run.alert(f"{self.name}: possible reward hacking", decision.reason, level="WARN")
        if decision.alarm and self.stop:
            control.should_training_stop = True
