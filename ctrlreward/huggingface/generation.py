"""Generation with the model of a trainer, and scores of held-out prompts at evaluation."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, Trainer, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments
from transformers.integrations.integration_utils import WandbCallback
from transformers.trainer_utils import IntervalStrategy, default_compute_objective

from ctrlreward.arguments import check_type, positive
from ctrlreward.completion import eval_mode, generate_across_ranks, unclear_input
from ctrlreward.extras import import_extra
from ctrlreward.files import remove_unfinished
from ctrlreward.held_out import TABLE, HeldOutScorer
from ctrlreward.huggingface.run_state import PREFIX, RestoresItself, Run, join_state
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.models.tokenization import before_space
from ctrlreward.ranks import on_rank_zero, rank_and_ranks
from ctrlreward.samples import (
    Samples,
    SamplesLike,
    Unfinished,
    as_samples,
    parse_conversation,
    table_of,
)
from ctrlreward.scorers.base import check_columns
from ctrlreward.scorers.components import ComponentLike
from ctrlreward.scorers.records import sample_table
from ctrlreward.sharded_weights import whole_weights

log = logging.getLogger(__name__)


class GenerationScorer(RestoresItself, HeldOutScorer, TrainerCallback):
    """Generates from held-out prompts at evaluation, scores the texts and logs the mean scores.

    Logs `eval_<name>/<score>` and the other metrics of `HeldOutScorer` to all loggers in
    `report_to`, and adds them to the metrics of the evaluation, so that `metric_for_best_model` may
    name them (in a hyperparameter search with transformers' default objective, the sum of all
    metrics, only this one). All texts with their scores go to
    `<output_dir>/samples/<name>/step=000123.jsonl`, and some to a table of the run of Weights &
    Biases, which has scores and table in the trainer's next row, with their step as
    `eval/<name>/scored_step`.

    Generates with `generate`, or with the vLLM engine of a TRL trainer that has one, once per step
    with the same seed. On several ranks each generates its share, and rank 0 scores. A model that
    FSDP or DeepSpeed ZeRO-3 splits is gathered while it generates, which needs the memory of the
    whole model on each rank, and under ZeRO-3 TRL. A run that resumes with other prompts, another
    `generations_per_prompt` or settings of `generate` says so, and rules start a new reference.

    The arguments that are not listed are of `HeldOutScorer`. Two such callbacks in one trainer need
    different names.

    Args:
        trainer: The trainer to which the callback is added.
        samples: The held-out prompts: texts, `Samples`, or a data set of TRL, whose column `prompt`
            has texts or messages. The model reads messages by the trainer's chat template; scores
            read what its reward functions read, which is the completion, after the prompt if
            `as_reward_funcs` maps `prefixes`.
        every_n_evaluations: Interval; the n-th evaluation is the first one to be scored.
        generation: Settings of `generate` that differ from the trainer's or else the model's, with
            `max_new_tokens=64`. A trainer with vLLM samples as in training.
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
        seed: int = 0,
        answer_after: str | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        check_type("trainer", Trainer, trainer)
        self._generator = TrainerGenerator(trainer, samples, generation)
        prompts = self._generator.samples
        super().__init__(
            scores, prompts, generations_per_prompt, name, seed, answer_after, unfinished
        )
        check_columns(self.components, self.prompts)
        self.trainer = trainer
        self.every_n_evaluations = positive("every_n_evaluations", every_n_evaluations)
        self.folder = Path(trainer.args.output_dir or ".") / "samples" / name
        self._entry: dict[str, Any] = {"step": -1}  # in the trainer's state
        self._training = False

    @property
    def last_scored_step(self) -> int:
        """`state.global_step` of the last scores; -1 before."""
        return int(self._entry["step"])

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
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
        # Steps of the last scores and of the last evaluation, and what this one logged, since a
        # resumed run may evaluate the weights of its checkpoint again (`eval_on_start`).
        new = {"step": -1, "seen": -1, "evaluations": 0, "logged": {}}
        self._entry = entry = join_state(state, self)["scores"].setdefault(self.name, new)
        entry["modes"] = {key: spec.mode for key, spec in self.specs.items()}
        self.settings = self._generator.settings()
        on_rank_zero(lambda: remove_unfinished(self.folder, "step=*"))
        if changed := self.changed_since(entry.get("measured", {})):
            entry |= {"step": -1, "seen": -1}
            if state.is_world_process_zero:
                log.warning(changed)
        entry["measured"] = self.measured
        self._training = True

    def on_train_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        self._training = False
        self.release()

    def on_evaluate(
        self, args: Arguments, state: State, control: Control, metrics: Any = None, **_: Any
    ) -> None:
        """Generate, score and log, in training at every n-th evaluation and once per step."""
        check_own(self, state)
        step, entry = state.global_step, self._entry
        if not self._training:
            logged = self._evaluate(args, state)
        else:
            if step != entry["seen"]:  # not another set of the same evaluation
                entry |= {"seen": step, "evaluations": entry["evaluations"] + 1, "logged": {}}
                if entry["evaluations"] % self.every_n_evaluations == 0:
                    entry |= {"step": step, "logged": self._evaluate(args, state)}
                    Run.of(state).evidence[self.name] = step, self.evidence
            logged = entry["logged"]
        searches = state.is_hyper_param_search
        if searches and self.trainer.compute_objective is default_compute_objective:
            chosen = f"{PREFIX}{(args.metric_for_best_model or '').removeprefix(PREFIX)}"
            logged = {key: value for key, value in logged.items() if key == chosen}
        metrics.update(logged)

    def _evaluate(self, args: Arguments, state: State) -> dict[str, float]:
        samples = self._generator.generate(self.prompts, self.generations_per_prompt, self.seed)
        kind = "" if self._training else "evaluate-"  # the texts of training stay
        path = self.folder / f"{kind}step={state.global_step:06d}.jsonl"
        result = self.score_on_rank_zero(samples, path)

        def show() -> None:
            if (run := wandb_run(args)) is None:
                return
            columns, rows = sample_table(samples, result.scores, result.reasons)
            table = import_extra("wandb", "report_to='wandb'").Table(columns=columns, data=rows)
            shown = {f"eval/{key}": value for key, value in result.metrics.items()}
            add_to_run(run, self.name, {**shown, f"{self.name}/{TABLE}": table}, state.global_step)

        on_rank_zero(show)
        logged = {PREFIX + key: value for key, value in result.metrics.items()}
        # Without W&B's callback, which would end a row.
        handler = self.trainer.callback_handler
        callbacks = handler.callbacks
        handler.callbacks = [each for each in callbacks if not isinstance(each, WandbCallback)]
        try:
            # Not the trainer's own: TRL's adds and forgets the metrics of training.
            Trainer.log(self.trainer, dict(logged))
        finally:
            handler.callbacks = callbacks
        return logged


def wandb_run(args: Arguments) -> Any:
    """Return the active run of Weights & Biases that a trainer reports to, None if there is none.

    A trainer starts its run when training begins.
    """
    reports = "wandb" in (args.report_to or ())
    return import_extra("wandb", "report_to='wandb'").run if reports else None


def add_to_run(run: Any, name: str, values: Mapping[str, Any], step: int) -> None:
    """Add values of a step to the next row of a run of Weights & Biases.

    A row of our own would advance the step of the run, which drops what a user then logs with a
    lower one. The next row may be of a later step, so the values are drawn over
    `eval/<name>/scored_step`, which `ctrlreward select` also reads.
    """
    own = f"eval/{name}/scored_step"
    run.define_metric(own, hidden=True)
    for key in values:
        run.define_metric(key, step_metric=own)
    run.log({**values, own: step}, commit=False)


# Settings of `generate` that change what is measured.
_MEASURED = ("max_new_tokens", "max_length", "do_sample", "temperature", "top_p", "top_k")


class TrainerGenerator:
    """A `TextGenerator` with the model in training, by `generate` or the trainer's vLLM.

    A chat is tokenized by `apply_chat_template`. A prompt of a data set of TRL is read
    as it is written, as in training; another one, by a causal model, without the spaces at its end
    (`before_space`). The arguments are as in `GenerationScorer`; `samples` then has the prompts as
    `Samples`. A ValueError says why the trainer cannot complete them.
    """

    def __init__(
        self,
        trainer: Any,
        samples: Any,
        generation: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.trainer = trainer
        self.generation = generation
        for key in generation if isinstance(generation, Mapping) else ():
            if key not in GenerationConfig().to_dict():
                raise ValueError(f"generation has no setting {key!r} of GenerationConfig")
        self._plain: list[str] | None = None  # prompts of TRL, as its reward functions get them
        self._chats: frozenset[str] = frozenset()  # rendered by the template
        self.samples = as_samples(self._prompts(samples))
        if error := unclear_input(trainer.model, self.samples):
            raise ValueError(error)
        if trainer.processing_class is None:
            raise ValueError("the trainer has no tokenizer. Use Trainer(processing_class=...).")

    def _prompts(self, samples: Any) -> SamplesLike:
        """Return the prompts of a data set of TRL as samples, and note how they are read.

        Columns are mapped as by the `as_reward_funcs` of this trainer. Without reward functions a
        prompt that is a text is the beginning of the text. Samples with texts are returned
        unchanged.
        """
        table = table_of(samples)
        if isinstance(samples, list) and samples and isinstance(samples[0], Mapping):
            table = {key: [row.get(key) for row in samples] for key in samples[0]}
        if table is None or "text" in table or "texts" in table:
            return cast(SamplesLike, samples)
        if "prompt" not in table:
            raise ValueError(
                f"samples must have a column 'prompt' or 'text', got {', '.join(map(str, table))}"
            )
        prompts = table["prompt"]
        functions = getattr(self.trainer, "reward_funcs", None) or ()
        given = [getattr(function, "columns", None) for function in functions]
        columns = {n: c for each in given if isinstance(each, Mapping) for n, c in each.items()}
        chats = any(not isinstance(each, str) for each in prompts)
        continued = columns.get("prefixes") == "prompt" or not (functions or chats)
        beginnings = [plain_text(each) if continued else "" for each in prompts]
        nothing = [None] * len(prompts)
        settings = (table.get(name) or nothing for name in ("chat_template_kwargs", "tools"))
        read = [self._rendered(*each) for each in zip(prompts, *settings, strict=True)]
        self._plain = [as_prompt(each) for each in prompts]
        rows = zip(prompts, read, strict=True)
        self._chats = frozenset(text for prompt, text in rows if not isinstance(prompt, str))
        others = {name: table[name] for name in table if name != "prompt"}
        others |= {n: table[c] for n, c in columns.items() if c in table and c != "prompt"}
        return {**others, "texts": beginnings, "prefixes": beginnings, "prompts": read}

    def _rendered(
        self, prompt: Any, kwargs: Mapping[str, Any] | None = None, tools: Any = None
    ) -> str:
        if isinstance(prompt, str):
            return prompt
        trainer, continues = self.trainer, prompt[-1]["role"] == "assistant"
        tools = json.loads(tools) if isinstance(tools, str) else tools
        text: str = trainer.processing_class.apply_chat_template(
            prompt,
            tools=getattr(trainer, "tools", tools) or None,  # some templates render []
            chat_template=getattr(trainer, "chat_template", None),
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            **{**(getattr(trainer, "chat_template_kwargs", None) or {}), **(kwargs or {})},
        )
        return text

    def settings(self) -> dict[str, Any]:
        """Return the settings that differ from transformers' defaults, such as the length."""
        if self._has_vllm:
            return {"max_completion_length": self.trainer.args.max_completion_length}
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        config, usual = self._config(model).to_dict(), GenerationConfig().to_dict()
        return {key: config[key] for key in _MEASURED if config.get(key) != usual.get(key)}

    def generate(self, prompts: Samples, repeats: int, seed: int) -> Samples:
        """Return completions, as a reward function gets them; all ranks must call this.

        A model that FSDP or ZeRO-3 splits is gathered; each rank then completes its own prompts,
        perhaps none.
        """
        trainer, rows = self.trainer, [*range(len(prompts))]
        plugin = trainer.accelerator.state.deepspeed_plugin
        whole: AbstractContextManager[Any] = nullcontext()
        if self._has_vllm:  # in TRL a collective, to which each rank brings as many prompts
            rows += [0] * (-len(prompts) % rank_and_ranks()[1])
        elif plugin is not None and plugin.zero_stage == 3:
            unwrap = import_extra("trl", "DeepSpeed ZeRO-3").models.unwrap_model_for_generation
            whole = unwrap(trainer.model_wrapped, trainer.accelerator)
        else:
            whole = whole_weights(trainer.model)
        with whole:
            samples = generate_across_ranks(self, prompts[rows], repeats, seed)
        return self.as_scored(samples[: len(prompts) * repeats])

    def as_scored(self, samples: Samples) -> Samples:
        """Return completions with the prompts that reward functions get, without a template."""
        if self._plain is None:
            return samples
        repeats = len(samples) // len(self._plain)
        return samples.replace(prompts=[each for each in self._plain for _ in range(repeats)])

    @property
    def _has_vllm(self) -> bool:
        return getattr(self.trainer, "vllm_generation", None) is not None  # as TRL names it

    @property
    def tokenizer(self) -> Any:
        """The trainer's tokenizer, of a processor its own."""
        return getattr(self.trainer, "_tokenizer", None) or self.trainer.processing_class

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Complete each prompt."""
        trainer, tokenizer = self.trainer, self.tokenizer
        ids = [self._ids(tokenizer, prompt) for prompt in prompts]
        if self._has_vllm:
            engine = trainer.vllm_generation
            engine.sync_weights()
            _, new, *_ = engine.generate(prompts=ids, images=None, num_generations=1)
            return list(tokenizer.batch_decode(new, skip_special_tokens=True))
        model = trainer.accelerator.unwrap_model(trainer.model)
        config, texts = self._config(model), list[str]()
        has_encoder = model.config.is_encoder_decoder
        side = "right" if has_encoder else "left"  # BART counts positions from the left
        padding = tokenizer.eos_token_id if tokenizer.pad_token is None else tokenizer.pad_token_id
        size = trainer.args.per_device_eval_batch_size
        with eval_mode(model), torch.no_grad(), trainer.accelerator.autocast():
            for start in range(0, len(prompts), size):
                rows = [torch.tensor(row) for row in ids[start : start + size]]
                read = pad_sequence(rows, True, padding, side)
                mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, side)
                new = model.generate(
                    input_ids=read.to(model.device),
                    attention_mask=mask.to(model.device),
                    generation_config=config,
                    synced_gpus=False,  # the ranks may have different numbers of batches
                )
                written = new if has_encoder else new[:, read.shape[1] :]
                texts += tokenizer.batch_decode(written, skip_special_tokens=True)
        return texts

    def _ids(self, tokenizer: Any, prompt: str) -> list[int]:
        """Return the tokens of a prompt; a chat has its special tokens."""
        messages = parse_conversation(prompt)  # of `Samples`
        chat = bool(messages) or prompt in self._chats
        if messages:
            prompt = self._rendered(messages)
        if not chat and self._plain is None and not self.trainer.model.config.is_encoder_decoder:
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


def check_own(callback: Any, state: State) -> None:
    """Raise if a callback that generates with one trainer is called by another one."""
    if state is not callback.trainer.state:
        name = type(callback).__name__
        raise ValueError(f"this {name} was built with another trainer. Build a new one.")
