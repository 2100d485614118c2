"""Generation with the model of a trainer, and scores of held-out prompts at evaluation."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import WandbCallback
from transformers.trainer_utils import IntervalStrategy

from ctrlreward.arguments import did_you_mean, kind_of, positive
from ctrlreward.completion import (
    eval_mode,
    fixed_randomness,
    generate_across_ranks,
    unclear_input,
)
from ctrlreward.extras import import_extra
from ctrlreward.files import remove_unfinished
from ctrlreward.held_out import (
    TABLE,
    HeldOutScorer,
    HeldOutScores,
)
from ctrlreward.huggingface.run_state import PREFIX, RestoresItself, join_state, scorers
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.models.tokenization import before_space
from ctrlreward.ranks import on_rank_zero, rank_and_ranks
from ctrlreward.samples import Samples, SamplesLike, parse_conversation, table_of
from ctrlreward.scorers.base import check_columns
from ctrlreward.scorers.components import ComponentLike
from ctrlreward.scorers.records import sample_table
from ctrlreward.sharded_weights import whole_weights

log = logging.getLogger(__name__)


class GenerationScorer(RestoresItself, HeldOutScorer, TrainerCallback):
    """Generates from held-out prompts at evaluation, scores the texts and logs the mean scores.

    Logs `eval_<name>/<score>` and the other metrics of `HeldOutScorer` to all loggers in
    `report_to`, and adds them to the metrics of the evaluation, so that `metric_for_best_model` may
    name them. All texts with their scores go to `<output_dir>/samples/<name>/step=000123.jsonl`,
    and some to a table of the run of Weights & Biases or trackio. Weights & Biases has scores and
    table in the trainer's next row, with their step as `eval/<name>/scored_step`.

    Generates with `generate`, or with the vLLM engine of a TRL trainer that has one, once per step
    with the same seed. On several ranks each generates its share, and rank 0 scores. A model that
    FSDP or DeepSpeed ZeRO-3 splits is gathered while it generates, which needs the memory of the
    whole model on each rank, and under ZeRO-3 TRL. A run that resumes with other prompts, another
    `generations_per_prompt` or settings of `generate` says so, and rules start a new reference.

    Further arguments are as in `HeldOutScorer`.

    Args:
        trainer: The trainer to which the callback is added, by `trainer.add_callback`.
        scores: Name → score to log: `{"attribute_relevance": ctrleval["attribute_relevance"]}`, or
            a scorer with a single score.
        samples: The held-out prompts: texts, `Samples`, or a data set of TRL, whose column `prompt`
            has texts or messages. The model reads messages by the trainer's chat template; scores
            read what its reward functions read, which is the completion, after the prompt if
            `as_reward_funcs` maps `prefixes`.
        every_n_evaluations: Interval; the n-th evaluation is the first one to be scored.
        name: Prefix of each key. Two such callbacks in one trainer need different names.
        generation: Settings of `generate` that differ from the trainer's or else the model's, with
            `max_new_tokens=64`. A trainer with vLLM samples as in training.
        table_rows: Rows of the table.

    Attributes:
        last_scored_step: `state.global_step` of the last scores; -1 before.
        folder: Folder of the sample files.

    Raises:
        TypeError: `trainer` is not a `transformers.Trainer`, or a value of `scores` is not a score.
        ValueError: As in `HeldOutScorer`; the samples do not say whether an encoder-decoder reads
            or continues them; the trainer is still in its `__init__`.
    """

    def __init__(
        self,
        trainer: Trainer,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        every_n_evaluations: int = 1,
        generations_per_prompt: int = 1,
        name: str = "score",
        generation: GenerationConfig | Mapping[str, Any] | None = None,
        table_rows: int = 16,
        seed: int = 0,
    ) -> None:
        check_trainer(trainer, self)
        prompts = prompts_as_texts(trainer, samples)
        super().__init__(*(scores, prompts.samples, generations_per_prompt, name, seed))
        self.trainer = trainer
        self.every_n_evaluations = positive("every_n_evaluations", every_n_evaluations)
        self.table_rows = positive("table_rows", table_rows)
        self._generator = TrainerGenerator(trainer, generation, self.samples, prompts)
        check_columns(self.components, self.prompts)
        self.folder = Path(trainer.args.output_dir or ".") / "samples" / name
        self.last_scored_step = -1
        self._training = False
        self._seen = -1
        self._logged: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Declare the directions of the scores, and continue the counters of a resumed run.

        Moves ahead of other callbacks, which decide on its scores.
        """
        check_own(self, state)
        callbacks = self.trainer.callback_handler.callbacks
        alike = [each for each in callbacks if isinstance(each, GenerationScorer)]
        if [each.name for each in alike].count(self.name) > 1:
            raise ValueError(f"two GenerationScorers have the name {self.name!r}. Pass name='...'.")
        callbacks.remove(self)
        callbacks.insert(alike.index(self), self)
        if args.eval_strategy == IntervalStrategy.NO:
            log.warning("GenerationScorer scores at evaluations, but eval_strategy is 'no'")
        join_state(state, self)
        entry = scorers(state).setdefault(
            self.name, {"step": -1, "evaluations": 0, "by_prompt": {}}
        )
        entry["modes"] = {key: spec.mode for key, spec in self.specs.items()}
        entry["ranges"] = {key: spec.bounds for key, spec in self.specs.items()}
        self.settings = self._generator.settings()
        on_rank_zero(lambda: remove_unfinished(self.folder, "step=*"))
        if changed := self.changed_since(entry.get("measured", {})):
            entry |= {"step": -1, "by_prompt": {}, "seen": -1}
            if state.is_world_process_zero:
                log.warning(changed)
        entry["measured"] = self.measured
        self.last_scored_step = entry["step"]
        self.by_prompt = {key: np.array(table) for key, table in entry["by_prompt"].items()}
        self._training = True
        # A resumed run may evaluate the weights of its checkpoint again (`eval_on_start`).
        self._seen = entry.get("seen", -1)
        start, self._logged = f"{PREFIX}{self.name}/", {}
        for row in state.log_history if self._seen == entry["step"] else ():
            if row.get("step") == self._seen:
                self._logged |= {key: row[key] for key in row if key.startswith(start)}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Free the scorers' models."""
        self._training = False
        for scorer in self.scorers:
            scorer.release()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Generate, score and log, in training at every n-th evaluation and once per step."""
        step = state.global_step
        check_own(self, state)
        if not self._training:
            self._logged = self._evaluate(step)
        elif step != self._seen:  # not another set of the same evaluation
            entry, self._seen, self._logged = scorers(state)[self.name], step, {}
            entry["seen"] = step
            entry["evaluations"] += 1
            if entry["evaluations"] % self.every_n_evaluations == 0:
                self._logged = self._evaluate(step)
                entry["step"] = self.last_scored_step = step
                entry["by_prompt"] = {key: table.tolist() for key, table in self.by_prompt.items()}
                entry["measure"] = self.measure
        kwargs.get("metrics", {}).update(self._logged)

    def _evaluate(self, step: int) -> dict[str, float]:
        """Return the metrics, with the prefix of evaluations, and log them."""
        samples = self._generator.generate(self.prompts, self.generations_per_prompt, self.seed)
        values = self.metrics(on_rank_zero(lambda: self._score(step, samples)))
        logged = {PREFIX + key: value for key, value in values.items()}
        self._log(step, logged)
        return logged

    def _log(self, step: int, logged: dict[str, float]) -> None:
        """Log by the trainer, but to W&B by `add_to_run`, since its callback ends a row."""
        handler = self.trainer.callback_handler
        callbacks = handler.callbacks
        others = [each for each in callbacks if not isinstance(each, WandbCallback)]
        handler.callbacks = others
        try:
            # Not the trainer's own: TRL's adds and forgets the metrics of training.
            Trainer.log(self.trainer, dict(logged))
        finally:
            handler.callbacks = callbacks
        if others != callbacks and self.trainer.is_world_process_zero():
            wandb = import_extra("wandb", "WandbCallback")
            if wandb.run is not None:
                add_to_run(wandb, wandb.run, self.name, as_shown(logged), step)

    def _score(self, step: int, samples: Samples) -> HeldOutScores:
        with fixed_randomness(self.seed):
            kind = "" if self._training else "evaluate-"  # the texts of training stay
            found = self.score_samples(samples, self.folder / f"{kind}step={step:06d}.jsonl")
        runs = tracked_runs(self.trainer.args)
        if runs:
            columns, rows = sample_table(samples, found.scores, self.table_rows, found.reasons)
            for module, run in runs:
                table = module.Table(columns=columns, data=rows)
                add_to_run(module, run, self.name, {f"{self.name}/{TABLE}": table}, step)
        return found


def tracked_runs(args: TrainingArguments) -> list[tuple[ModuleType, Any]]:
    """Return the runs of Weights & Biases and trackio that a trainer reports to, and their modules.

    A trainer starts its runs when it logs; one of trackio ends with the training.
    """
    found = {}
    if "wandb" in (args.report_to or ()):
        module = import_extra("wandb", "report_to='wandb'")
        found[module] = module.run
    if "trackio" in (args.report_to or ()):
        module = import_module("trackio")
        found[module] = module.context_vars.current_run.get()
    return [(module, run) for module, run in found.items() if run is not None]


def add_to_run(
    module: ModuleType, run: Any, name: str, values: Mapping[str, Any], step: int
) -> None:
    """Log values of a step to a run of trackio, or add them to the next row of one of W&B.

    A row of our own would advance the step of a W&B run, which drops what a user then logs with a
    lower one. The next row may be of a later step, so the values are drawn over
    `eval/<name>/scored_step`, which `ctrlreward select` reads, too.
    """
    if module.__name__ == "trackio":
        run.log({**values, "train/global_step": step})
        return
    own = f"eval/{name}/scored_step"
    run.define_metric(own, hidden=True)
    for key in values:
        run.define_metric(key, step_metric=own)
    run.log({**values, own: step}, commit=False)


def as_shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics under the names that a trainer gives them in its runs: `eval/…`."""
    return {key.replace(PREFIX, "eval/", 1): value for key, value in metrics.items()}


# Settings of `generate` that change what is measured.
_MEASURED = ("max_new_tokens", "max_length", "do_sample", "temperature", "top_p", "top_k")


class TrainerGenerator:
    """A `TextGenerator` with the model in training, by `generate` or the trainer's vLLM.

    The tokens of a chat are those of `apply_chat_template`. A prompt of a data set of TRL is read
    as it is written, as in training; another one, by a causal model, without the spaces at its end
    (`before_space`). A ValueError says why the trainer cannot complete the prompts.
    """

    def __init__(
        self,
        trainer: Any,
        generation: GenerationConfig | Mapping[str, Any] | None,
        samples: Samples,
        prompts: TrainerPrompts | None = None,
    ) -> None:
        self.trainer = trainer
        self.generation = generation
        self.plain = prompts and prompts.plain
        self.chats = prompts.chats if prompts else frozenset()
        known = GenerationConfig().to_dict()
        for key in generation if isinstance(generation, Mapping) else ():
            if key not in known:
                raise ValueError(
                    f"generation has the key {key!r}, which is not a setting of GenerationConfig"
                    f"{did_you_mean(key, known)}"
                )
        error = unclear_input(trainer.model, samples)
        if error:
            raise ValueError(error)
        if trainer.processing_class is None:
            raise ValueError("the trainer has no tokenizer. Use Trainer(processing_class=...).")
        self._unwrap: Callable[..., AbstractContextManager[Any]] | None = None
        if not self._has_vllm and self._is_zero3:
            trl = import_extra("trl", "DeepSpeed ZeRO-3")
            self._unwrap = trl.models.unwrap_model_for_generation

    def settings(self) -> dict[str, Any]:
        """Return the settings that differ from those of transformers, such as the length."""
        if self._has_vllm:
            return {"max_completion_length": self.trainer.args.max_completion_length}
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        config, usual = self._config(model).to_dict(), GenerationConfig().to_dict()
        return {key: config[key] for key in _MEASURED if config.get(key) != usual.get(key)}

    def generate(self, prompts: Samples, repeats: int, seed: int) -> Samples:
        """Return completions, as a reward function gets them; all ranks must call this."""
        # The calls of vLLM in TRL are collectives, to which each rank brings as many prompts.
        more = -len(prompts) % rank_and_ranks()[1] if self._has_vllm else 0
        rows = [*range(len(prompts)), *[0] * more]
        with self.whole_model():
            samples = generate_across_ranks(self, prompts[rows], repeats, seed)
        return as_scored(samples[: len(prompts) * repeats], self.plain)

    def whole_model(self) -> AbstractContextManager[Any]:
        """Gather the weights of a model that FSDP or ZeRO-3 splits, inside the context.

        A collective. Each rank then completes its own prompts, perhaps none.
        """
        if self._has_vllm:
            return nullcontext()
        if self._unwrap is not None:
            return self._unwrap(self.trainer.model_wrapped, self.trainer.accelerator)
        return whole_weights(self.trainer.model)

    @property
    def _is_zero3(self) -> bool:
        plugin = self.trainer.accelerator.state.deepspeed_plugin
        return plugin is not None and plugin.zero_stage == 3

    @property
    def _has_vllm(self) -> bool:
        return getattr(self.trainer, "vllm_generation", None) is not None  # as TRL names it

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Complete each prompt."""
        trainer = self.trainer
        tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
        ids = [self._ids(tokenizer, prompt) for prompt in prompts]
        if self._has_vllm:
            trainer.vllm_generation.sync_weights()
            _, new, *_ = trainer.vllm_generation.generate(
                prompts=ids, images=None, num_generations=1
            )
            return list(tokenizer.batch_decode(new, skip_special_tokens=True))
        model = trainer.accelerator.unwrap_model(trainer.model)
        config = self._config(model)
        texts: list[str] = []
        autocast = trainer.accelerator.autocast()
        with _padding_token(tokenizer), eval_mode(model), torch.no_grad(), autocast:
            size = trainer.args.per_device_eval_batch_size
            for start in range(0, len(prompts), size):
                rows = ids[start : start + size]
                width = max(map(len, rows))
                padded = [[tokenizer.pad_token_id] * (width - len(row)) + row for row in rows]
                mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
                new = model.generate(
                    input_ids=torch.tensor(padded, device=model.device),
                    attention_mask=torch.tensor(mask, device=model.device),
                    generation_config=config,
                    synced_gpus=False,  # the ranks may have different numbers of batches
                )
                if not model.config.is_encoder_decoder:
                    new = new[:, width:]
                texts += tokenizer.batch_decode(new, skip_special_tokens=True)
        return texts

    def _ids(self, tokenizer: Any, prompt: str) -> list[int]:
        """Return the tokens of a prompt; a chat has its special tokens."""
        if messages := parse_conversation(prompt):  # of `Samples`
            prompt, chat = _as_read(self.trainer, messages, None, None), True
        else:
            chat = prompt in self.chats
        if not chat and self.plain is None and not self.trainer.model.config.is_encoder_decoder:
            prompt = before_space(prompt)
        begun = bool(tokenizer.bos_token and prompt.startswith(tokenizer.bos_token))
        read = tokenizer(text=[prompt], add_special_tokens=not chat and not begun, verbose=False)
        return list(read["input_ids"][0])

    def _config(self, model: Any) -> GenerationConfig:
        """Return what the trainer would generate with, and what differs from it."""
        if isinstance(self.generation, GenerationConfig):
            return self.generation
        trainer, own = self.trainer, dict(self.generation or {})
        if hasattr(trainer, "generation_config"):
            base = trainer.generation_config.to_dict()
        else:
            base = model.generation_config.to_dict()
            sets = {
                "max_length": getattr(trainer.args, "generation_max_length", None),
                "num_beams": getattr(trainer.args, "generation_num_beams", None),
            }
            if getattr(trainer.args, "predict_with_generate", False):
                sets |= getattr(trainer, "_gen_kwargs", {})  # the arguments of this evaluate
            elif sets["max_length"] is None:
                base |= {"max_length": None, "max_new_tokens": 64}
            base |= {key: value for key, value in sets.items() if value is not None}
        lengths = ("max_length", "max_new_tokens")
        if any(key in own for key in lengths):
            base |= dict.fromkeys(lengths)  # of two given, generate takes max_new_tokens
        return GenerationConfig.from_dict({**base, **own})


@contextmanager
def _padding_token(tokenizer: Any) -> Iterator[None]:
    """Let a tokenizer without a padding token pad with its end token inside the context."""
    missing = tokenizer.pad_token is None
    if missing:
        tokenizer.pad_token = tokenizer.eos_token
    try:
        yield
    finally:
        if missing:
            tokenizer.pad_token = None


class TrainerPrompts(NamedTuple):
    """Prompts as samples, as reward functions of TRL get them, and the rendered chats of them."""

    samples: SamplesLike
    plain: list[str] | None = None
    chats: frozenset[str] = frozenset()


def prompts_as_texts(trainer: Any, samples: Any) -> TrainerPrompts:
    """Return the prompts of a data set of TRL as samples, and as its reward functions get them.

    See `GenerationScorer`. Columns are mapped as by the `as_reward_funcs` of this trainer. Without
    reward functions a prompt that is a text is the beginning of the text. Samples without a column
    `prompt` but with texts are returned unchanged, with None.
    """
    table = table_of(samples)
    if isinstance(samples, list) and samples and isinstance(samples[0], Mapping):
        table = {key: [row.get(key) for row in samples] for key in samples[0]}
    if table is None or "text" in table or "texts" in table:
        return TrainerPrompts(cast(SamplesLike, samples))
    if "prompt" not in table:
        raise ValueError(
            f"samples must have a column 'prompt' or 'text', got {', '.join(map(str, table))}. "
            "Put the prompts, texts or messages without the answers, into 'prompt'."
        )
    functions = getattr(trainer, "reward_funcs", None) or ()
    given = [getattr(function, "columns", None) for function in functions]
    columns = {n: c for each in given if isinstance(each, Mapping) for n, c in each.items()}
    plain = [plain_text(each) for each in table["prompt"]]
    chats = any(not isinstance(each, str) for each in table["prompt"])
    continued = columns.get("prefixes") == "prompt" or not (functions or chats)
    beginnings = plain if continued else [""] * len(plain)
    names = ("chat_template_kwargs", "tools")
    settings = (table.get(name) or [None] * len(plain) for name in names)
    read = [_as_read(trainer, *each) for each in zip(table["prompt"], *settings, strict=True)]
    others = {name: table[name] for name in table if name != "prompt"}
    others |= {n: table[c] for n, c in columns.items() if c in table and c != "prompt"}
    found = {**others, "texts": beginnings, "prefixes": beginnings, "prompts": read}
    rows = zip(table["prompt"], read, strict=True)
    rendered = frozenset(text for prompt, text in rows if not isinstance(prompt, str))
    return TrainerPrompts(found, [as_prompt(each) for each in table["prompt"]], rendered)


def _as_read(trainer: Any, prompt: Any, kwargs: Mapping[str, Any] | None, tools: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    tools = json.loads(tools) if isinstance(tools, str) else tools
    continues = prompt[-1]["role"] == "assistant"
    settings = {**(getattr(trainer, "chat_template_kwargs", None) or {}), **(kwargs or {})}
    text: str = trainer.processing_class.apply_chat_template(
        prompt,
        tools=getattr(trainer, "tools", tools) or None,  # some templates render []
        chat_template=getattr(trainer, "chat_template", None),
        tokenize=False,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **settings,
    )
    return text


def as_scored(samples: Samples, plain: Sequence[str] | None) -> Samples:
    """Return completions with the prompts that reward functions get, without a template."""
    if plain is None:
        return samples
    repeats = len(samples) // len(plain)
    return replace(samples, prompts=[prompt for prompt in plain for _ in range(repeats)])


def check_own(callback: Any, state: TrainerState) -> None:
    """Raise if a callback that generates with one trainer is called by another one."""
    if state is not callback.trainer.state:
        name = type(callback).__name__
        raise ValueError(f"this {name} was built with another trainer. Build a new one.")


def check_trainer(trainer: object, callback: object) -> None:
    """Raise if the first argument of a callback is not a trainer, or one that is incomplete.

    ms-swift makes its callbacks before the model, the tokenizer and the state are in place.
    """
    name = type(callback).__name__
    if not isinstance(trainer, Trainer):
        raise TypeError(
            f"trainer must be a transformers.Trainer, got {kind_of(trainer)}. Create the "
            f"trainer first, then call trainer.add_callback({name}(trainer, scores, samples))."
        )
    if "callback_handler" not in vars(trainer):
        raise ValueError(
            f"the trainer of this {name} is still in its __init__. Build {name} afterwards, such "
            "as in on_init_end of a callback, and pass it to trainer.add_callback."
        )
