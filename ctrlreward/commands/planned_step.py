"""Cost of a training step without weights: its phases run on PyTorch's meta device.

Models are built from their configurations with shapes and no values. PyTorch then reports each
operation and each allocation of a phase, so no architecture needs a formula.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftConfig, PeftModel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.engine import batching, output_layer
from ctrlreward.engine.batching import Ids
from ctrlreward.engine.sharing import built_by
from ctrlreward.held_out import HeldOutScorer
from ctrlreward.models.aligner import TokenAlignment
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.classifier import Classifier, is_text_cnn, load_classifier
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.pairs import encode_pairs
from ctrlreward.models.pieces import Integers
from ctrlreward.models.prefix_trees import Row
from ctrlreward.models.seq2seq import Filling, Seq2SeqInfiller
from ctrlreward.models.tasks import TokenScores
from ctrlreward.models.tokenization import encode_texts
from ctrlreward.policy import packing
from ctrlreward.policy.adapted_module import PROMPTS_PER_BATCH
from ctrlreward.policy.cuda_graph import has_fixed_steps
from ctrlreward.policy.model import (
    LoRA,
    checkpoint_gradients,
    reference_policy,
    with_adapter,
    without_dropout,
)
from ctrlreward.policy.prompts import model_texts, read_batch
from ctrlreward.policy.tuner import PolicyTunerMixin
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, score
from ctrlreward.scorers.components import FunctionScorer
from ctrlreward.text.passages import passages
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.loading import load_config, load_tokenizer
from ctrlreward.weights.sources import resolve

_META = torch.device("meta")
_BATCHES = 32  # of the training set, read for the longest prompt
_IN_A_GRAPH = 0.16  # of the time of a kernel's call
# Share of the activations that the heap adds on the CPU by fragmentation (docs/plan.md).
_FRAGMENTATION = 0.4
CARDS = (24, 40, 80, 141)  # GB
_USABLE = 0.9  # of a card: the rest is for the driver and PyTorch's allocator
_QUANTIZED = {"nf4": 0.516, "int8": 1.0}  # bytes per weight of a linear layer, scales included


@dataclass
class Cost:
    """Cost of a phase.

    Its tensors' largest number of bytes, operations, calls of kernels, bytes of weights that are
    read, and seconds of Python, such as tokenisation.
    """

    peak: int = 0
    flops: float = 0.0
    calls: float = 0.0
    read: float = 0.0
    host: float = 0.0

    def times(self, n: float) -> Cost:
        """Return the cost of n such phases, one after the other."""
        return Cost(self.peak, self.flops * n, self.calls * n, self.read * n, self.host * n)

    def then(self, other: Cost) -> Cost:
        """Return the cost of this phase and another one after it."""
        sums = (getattr(self, n) + getattr(other, n) for n in ("flops", "calls", "read", "host"))
        return Cost(max(self.peak, other.peak), *sums)


class Trace(TorchDispatchMode):
    """Bytes of the live tensors that are allocated in the context, operations, kernels called."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.calls = self.flops = 0
        self._sizes: dict[int, int] = {}
        self._outside: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return False  # a mask has padding: no value is known
        for tensor in _tensors(args, kwargs):
            if (key := tensor.untyped_storage()._cdata) not in self._sizes:
                self._outside.add(key)
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls += 1
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._sizes and key not in self._outside:
                self._sizes[key] = size
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._free, key)
        return result

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _tensors(*values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


_ATTENTION = nn.functional.scaled_dot_product_attention


def _fused_attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Compute attention by a kernel that keeps no weights, as CPU and CUDA do; meta has none."""
    if query.dim() != 4 or args:
        return _ATTENTION(query, key, value, *args, **kwargs)
    mask = kwargs.get("attn_mask")
    if mask is not None:
        mask = mask.new_zeros(mask.shape, dtype=query.dtype) if mask.dtype == torch.bool else mask
        mask = mask.expand(*query.shape[:3], key.shape[2])
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    causal = bool(kwargs.get("is_causal", False))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, mask, query.requires_grad, 0.0, causal)[0]


@contextmanager
def traced() -> Iterator[Cost]:
    """Yield the cost that the context has at its end."""
    trace, cost = Trace(), Cost()
    nn.functional.scaled_dot_product_attention = _fused_attention
    try:
        with trace:
            yield cost
    finally:
        nn.functional.scaled_dot_product_attention = _ATTENTION
    cost.peak, cost.calls, cost.flops = trace.peak, trace.calls, trace.flops


def on_meta(auto_class: Any, model: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model without weights, from its configuration."""
    config = without_dropout(load_config(model))
    with _META:
        built = auto_class.from_config(config, dtype=dtype)
    return built.eval().requires_grad_(False)


def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    """Return a tensor without values on the meta device."""
    return torch.zeros(shape, dtype=dtype, device=_META)


def run_output_layer(
    model: Any, states: Tensor, device: str, temperature: float = 1.0, block: int | None = None
) -> Tensor:
    """Return the sum of a log-probability per state, by blocks as in `token_log_probs`."""
    vocabulary = len(model.get_output_embeddings().weight)
    rows, words = output_layer.block_shape(block, len(states), vocabulary, device)
    total: Any = 0.0
    for part in states.split(rows):
        blocks = -(-vocabulary // words)
        each = torch.arange(-(-len(part) // blocks), device=part.device)  # tokens of a block
        sums = torch.empty((blocks, len(part)), device=part.device)
        picked = torch.empty(len(each) * blocks, device=part.device)
        for k, logits in enumerate(output_layer.logit_blocks(model, part, words, temperature)):
            picked[k * len(each) : (k + 1) * len(each)] = logits[each, each]
            sums[k] = logits.logsumexp(-1)
        total = total + (picked[: len(part)] - sums.logsumexp(0)).sum()
    return total


class Planned(FrozenModel):
    """Frozen model without weights that records what it would read, and answers with constants."""

    plan: StepPlan  # set by the subclass that `StepPlan.build` makes
    peak = step_tokens = 0  # bytes of the largest pass; tokens read in a step

    def _load(self, model: str, device: str, dtype: str | None) -> PreTrainedModel:
        self.device = self.plan.place(device)
        self.forget()
        return on_meta(self.auto_class, model, self.plan.dtype(dtype, device))

    def forget(self) -> None:
        """Forget what was recorded."""
        self.tokens = self.passes = self.rows = self.width = self.scored = self.decoded = 0

    def record(self, lengths: Sequence[int], scored: int = 0, decoded: int = 0) -> None:
        """Record a call that reads rows of these lengths, padded, and scores tokens."""

        def record_pass(batch: list[int]) -> list[int]:
            rows, width = len(batch), max(lengths[i] for i in batch)
            self.tokens += rows * width
            self.passes += 1
            if rows * width > self.rows * self.width:
                self.rows, self.width = rows, width
            return batch

        batching.run_batched(lengths, self.batch_tokens, record_pass, "planning", self.padding)
        self.scored += scored
        self.decoded += decoded

    def read_texts(
        self, texts: Sequence[str], name: Any, read: Any, rows: list[Ids] | None = None
    ) -> list[Any]:
        """Record the texts, and return the results for equal hidden states."""
        rows = rows or encode_texts(self.tokenizer, texts, self.max_tokens, name)
        self.record([len(row) for row in set(rows)])
        results: list[Any] = []
        for row in rows:
            output = BaseModelOutput(
                last_hidden_state=torch.ones(1, len(row), self.model.config.hidden_size)
            )
            output.logits = torch.zeros(1, self.model.config.num_labels or 1)
            results += read(output, torch.ones(1, len(row)))
        return results

    def _check(self) -> bool:
        return True

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterator[TokenAlignment]:
        """Record the pairs of a trained aligner, and yield equal values."""
        unit: Any = getattr(self, "unit", "piece")
        encoded = encode_pairs(self.tokenizer, pairs, self.max_tokens, unit)
        self.record([len(pair.ids) for pair in encoded])
        for pair in encoded:
            yield TokenAlignment(pair.spans, np.full(len(pair.spans), 0.5))

    def cost(self) -> Cost:
        """Return the cost of all recorded passes, by the largest one."""
        if not self.tokens:
            return Cost()
        rows, width, largest = self.rows, self.width, self.rows * self.width
        inputs = {"input_ids": zeros(rows, width), "attention_mask": zeros(rows, width)}
        if isinstance(self, CausalLM):
            mask = zeros(rows, 1, width, width, dtype=self.model.dtype)  # of prefix trees
            inputs |= {"attention_mask": mask, "position_ids": zeros(rows, width)}
        elif isinstance(self, Seq2SeqInfiller):
            new = round(self.decoded * width / self.tokens)
            inputs["decoder_input_ids"] = zeros(rows, max(1, new))
        with torch.no_grad(), traced() as cost:
            if isinstance(self, CausalLM | Seq2SeqInfiller):
                hidden, _ = output_layer.states_and_output(self.model, **inputs)
                states = max(1, self.scored * largest // self.tokens)
                run_output_layer(self.model, hidden.flatten(0, 1)[:states], self.device)
            else:
                self.model(**inputs)
        self.peak = max(self.peak, cost.peak)
        read = weight_bytes(self.model) * self.passes
        return Cost(cost.peak, cost.flops * self.tokens / largest, cost.calls * self.passes, read)


class _PlannedCausal(Planned, CausalLM):
    def _read(self, rows: Sequence[Row], ends: Any) -> Any:
        """Record the rows, and return equal log-probabilities."""
        self.record([max(1, len(row.ids)) for row in rows], int(ends[-1]))
        return np.full(ends[-1], -3.0)


class _PlannedSeq2Seq(Planned, Seq2SeqInfiller):
    def fill(
        self, sources: Sequence[Integers], fillings: Sequence[tuple[Filling, ...]]
    ) -> list[TokenScores]:
        """Record sources and fillings, and return equal log-probabilities."""
        states = sum(len(filling.read) for group in fillings for filling in group)
        lengths = [len(source) for source in {each.tobytes(): each for each in sources}.values()]
        scored = sum(len(filling.scored) for group in fillings for filling in group)
        self.record(lengths, scored, states)
        answers = []
        for group in fillings:
            _, _, _, tokens, sizes = self._layout(group)
            answers.append(TokenScores(tokens, np.full(len(tokens), -3.0), sizes))
        return answers


class StepPlan:
    """Phases of a training step of a policy, and the models that it needs.

    Args:
        tuner: A `PolicyTuner`, or a module that learns from given completions in the same way;
            its policy is not loaded.
        data: Data module of the prompts.
        callbacks: Callbacks of the job; those that score held-out prompts need models as well.
        device: Device of the policy, `"cpu"` or `"cuda:0"`. On CUDA, scorers that the configuration
            leaves on the CPU are there as well.
        memory: Bytes of that device; None for the CPU.

    Attributes:
        models: Frozen models that were built, of the reward and of callbacks.
        notes: What the plan leaves out or assumes.
    """

    def __init__(
        self,
        tuner: Any,
        data: Any,
        callbacks: Sequence[Any],
        device: str,
        memory: float | None,
    ) -> None:
        self.tuner, self.callbacks, self.device, self.memory = tuner, callbacks, device, memory
        self.models: list[Planned] = []
        self.notes: list[str] = []
        self.untrained = [model.folder for model in getattr(data, "models", ())]
        self.held_out_peak = 0
        self.cache_bytes = 0
        self.learns_by_reward = isinstance(tuner, PolicyTunerMixin)
        self.each = tuner.generation.num_generations if self.learns_by_reward else 1
        self.tokenizer = load_tokenizer(tuner.base_model)
        self.policy = self._policy()
        self.samples, prompts = self._longest_batch(data)
        self.prompts, self.prompt_tokens = len(prompts), self._tokens(prompts)
        self.distinct = len(set(prompts))
        self.rows = self.prompts * self.each

    def place(self, device: str) -> str:
        """Return where a scorer is, given its device in the configuration."""
        if device == "cpu":
            return self.device
        return "cuda:0" if device == "cuda" else device

    def dtype(self, dtype: str | None, device: str) -> torch.dtype:
        """Return the data type of a model on a device, which this machine may lack."""
        if self.place(device) != "cpu" and dtype in (None, "fastest"):
            return torch.bfloat16
        return pick_dtype(dtype, "cpu")

    def _policy(self) -> PeftModel:
        lora, name = self.tuner.lora, self.tuner.base_model
        options = LoRA() if isinstance(lora, LoraConfig) else lora
        dtype = self.dtype(options.dtype, self.device)
        kind: Any = AutoModelForCausalLM
        if load_config(name).is_encoder_decoder:
            kind = AutoModelForSeq2SeqLM
        base = on_meta(kind, name, dtype)
        if isinstance(lora, LoRA) and lora.adapter is not None:
            trained: Any = LoraConfig()
            if Path(lora.adapter).expanduser().is_dir():
                trained = PeftConfig.from_pretrained(str(Path(lora.adapter).expanduser()))
                targets = trained.target_modules
                targets = targets if isinstance(targets, str) else sorted(targets)
                lora = replace(lora, adapter=None, r=trained.r, target_modules=targets)
            else:
                self.notes.append(f"{lora.adapter} does not exist yet: assumed to have rank 16")
                lora = replace(lora, adapter=None)
        with _META:
            return with_adapter(base, name, lora)

    @cached_property
    def trained(self) -> int:
        """Number of trained parameters."""
        return sum(p.numel() for p in self.policy.parameters() if p.requires_grad)

    @cached_property
    def training_bytes(self) -> int:
        """Bytes of the adapter, of its gradients and of AdamW's two moments, and of its start."""
        adapter = self.learns_by_reward and getattr(self.tuner.lora, "adapter", None)
        return (
            16 + 4 * (bool(adapter) and self.tuner.objective.reference == "start")
        ) * self.trained

    @cached_property
    def _linear(self) -> list[nn.Linear]:
        """Frozen linear layers."""
        kinds = [m for m in self.policy.modules() if type(m) is nn.Linear]
        return [layer for layer in kinds if not layer.weight.requires_grad]

    @cached_property
    def policy_bytes(self) -> int:
        """Bytes of the frozen base weights, quantised ones included."""
        whole = weight_bytes(self.policy) - 4 * self.trained
        kind = getattr(self.tuner.lora, "quantization", None)
        if kind is None:
            return whole
        output = self.policy.get_output_embeddings()
        layers = [layer.weight for layer in self._linear if layer is not output]
        return whole - int(sum(w.numel() * (w.element_size() - _QUANTIZED[kind]) for w in layers))

    @cached_property
    def packed_bytes(self) -> int:
        """Bytes of the copies of weights that sampling packs on the CPU."""
        if (
            self.device != "cpu"
            or sum(p.numel() for p in self.policy.parameters()) > packing._MOST_WEIGHTS
        ):
            return 0
        return sum(map(weight_bytes, self._linear))

    def _tokens(self, prompts: Sequence[str]) -> int:
        return max(len(ids) for ids in self.tokenizer(list(prompts)).input_ids)

    def _longest_batch(self, data: Any) -> tuple[Samples, list[str]]:
        """Return the completions of the batch with the longest prompt, and its prompts."""
        data.setup("fit")
        options, has_encoder = self.tuner.generation, self.policy.config.is_encoder_decoder
        found: list[tuple[int, Samples, list[str]]] = []
        for batch in islice(data.train_dataloader(), _BATCHES):
            read = read_batch(batch, options.chat or has_encoder)
            texts = model_texts(self.tokenizer, options, read.inputs)
            found.append((self._tokens(texts), read.samples.as_prompts(), texts))
        if not found:
            raise ValueError("the data module has no training batch")
        _, samples, texts = max(found, key=lambda each: each[0])
        return self._completed(samples, self.each), texts

    def _completed(self, prompts: Samples, each: int) -> Samples:
        """Return prompts with completions of full length, cut from built-in passages."""
        rows = [i for i in range(len(prompts)) for _ in range(each)]
        new = self.tuner.generation.max_completion_length
        words = " ".join(passage.text for passage in passages()).split()
        words *= 1 + (new + len(rows)) // len(words)
        texts = [" ".join(words[i : i + new]) for i in range(len(rows))]
        ids = self.tokenizer(texts, add_special_tokens=False).input_ids
        return prompts[rows].completed([f" {self.tokenizer.decode(x[:new])}" for x in ids])

    def build(self, kind: Callable[..., Any], *arguments: Any) -> Any:
        """Return a stand-in for a frozen model; word vectors and TextCNNs are small, and loaded."""
        if kind is load_classifier and not is_text_cnn(arguments[0]):
            kind = Classifier
        if not (isinstance(kind, type) and issubclass(kind, FrozenModel)):
            return kind(*arguments)
        bases: tuple[type, ...] = (Planned, kind)
        for own in (_PlannedCausal, _PlannedSeq2Seq):
            bases = (own,) if issubclass(own, kind) else bases
        model = type(kind.__name__, bases, {"plan": self})(*arguments)
        if model.device != "cpu" and arguments[3] is None:  # batch_tokens
            taken = self.policy_bytes + self.training_bytes if model.device == self.device else 0
            free = int(self.memory or 0) - taken - weight_bytes(model.model)
            model.batch_tokens = batching.tokens_within(max(free, 0) // 4, model.model)
        self.models.append(model)
        return model

    def _score(self, components: Mapping[str, Component], samples: Samples) -> Cost:
        """Return the cost of scoring samples by components, with stand-ins for their models."""
        known = dict(components)
        for model in self.models:
            model.forget()
        with built_by(self.build):
            for name, component in components.items():
                absent = "a function, or on a server"
                scorer: Any = component.scorer
                if not (isinstance(scorer, FunctionScorer) or getattr(scorer, "address", None)):
                    try:
                        scorer.load()
                        continue
                    except (ValueError, OSError) as error:
                        absent = next((f for f in self.untrained if f in str(error)), "")
                        if not absent:
                            raise
                        absent += " has not been trained yet"
                self.notes.append(f"{name} is left out: {absent}")
                del known[name]
            logging.disable(logging.WARNING)  # about the constants
            started = time.process_time()
            try:
                score(known, samples)
            finally:
                logging.disable(logging.NOTSET)
            host = time.process_time() - started
        return reduce(Cost.then, [model.cost() for model in self.models], Cost(host=host))

    def _sampling(self, prompts: int, rows: int, width: int) -> Cost:
        """Return the cost of sampling completions of full length."""
        policy: Any = self.policy.eval()
        new = self.tuner.generation.max_completion_length
        run = partial(output_layer.states_and_output, policy, use_cache=True)
        if policy.config.is_encoder_decoder:
            seen = {"attention_mask": zeros(rows, width)}
            states = zeros(rows, width, policy.config.d_model, dtype=policy.dtype)
            read = {"input_ids": zeros(prompts, width), "decoder_input_ids": zeros(prompts, 1)}
            all_but_one = {"encoder_outputs": (states,), "decoder_input_ids": zeros(rows, new)}
            last = {"encoder_outputs": (states,), "decoder_input_ids": zeros(rows, 1)}
        else:
            seen = {"attention_mask": zeros(rows, width + new)}
            read = {"input_ids": zeros(prompts, width)}
            all_but_one = {"input_ids": zeros(rows, width + new - 1)}
            last = {"input_ids": zeros(rows, 1), "position_ids": zeros(rows, 1)}
        with torch.no_grad():
            with traced() as first:
                run(**read)
            with traced():
                cache = run(**all_but_one)[1].past_key_values
            tensors = list(_cached(cache))
            with traced() as step:
                hidden, _ = run(**last, **seen, past_key_values=cache)
                logits = next(output_layer.logit_blocks(policy, hidden[:, 0]))
                del logits
        self.cache_bytes = sum(t.numel() * t.element_size() for t in tensors)
        # At the end the trace has the new cache; while one layer is copied, its old one as well.
        step.peak += self.cache_bytes // (len(tensors) // 2)
        step.read = self.policy_bytes + self.cache_bytes
        graph = self.tuner.generation.cuda_graph
        if graph and has_fixed_steps(policy, cache, new, torch.device(self.device).type):
            step.calls = round(step.calls * _IN_A_GRAPH)
        return first.then(step.times(new))

    def _forward(self, rows: int, learns: bool) -> Cost:
        """Return the cost of the log-probabilities of completions, and of their gradient."""
        policy: Any = self.policy.train(learns)
        options = self.tuner.generation
        width, new = self.prompt_tokens, options.max_completion_length
        given = zeros(rows, width + new)
        inputs = {"input_ids": given, "attention_mask": given, "position_ids": given}
        if policy.config.is_encoder_decoder:
            inputs = {
                "input_ids": zeros(rows, width),
                "attention_mask": zeros(rows, width),
                "decoder_input_ids": zeros(rows, new),
            }
        with torch.set_grad_enabled(learns), traced() as cost:
            hidden, _ = output_layer.states_and_output(policy, **inputs)
            states = hidden[:, -new - 1 : -1] if hidden.shape[1] > new else hidden
            total = run_output_layer(policy, states.flatten(0, 1), self.device, options.temperature)
            if learns:
                total.backward()
        for parameter in policy.parameters():
            parameter.grad = None
        cost.read = self.policy_bytes
        return cost

    def phases(self) -> dict[str, Cost]:
        """Return the cost of each phase of a step, and of one generation from held-out prompts."""
        tuner, rows = self.tuner, self.rows
        if tuner.optimizer.gradient_checkpointing:
            checkpoint_gradients(tuner.base_model, self.policy)
        if not self.learns_by_reward:
            return {"update": self._forward(rows, learns=True)}
        choices, optimizer = tuner.objective.choices, tuner.optimizer
        sampling = self._sampling(self.distinct, rows, self.prompt_tokens)
        if choices.baseline == "greedy":
            sampling = sampling.then(
                self._sampling(self.distinct, self.prompts, self.prompt_tokens)
            )
        reward = self._score(tuner.reward.components, self.samples)
        part = min(optimizer.microbatch_size or rows, rows)
        with reference_policy(self.policy):
            reference = self._forward(part, learns=False).times(rows / part)
        if optimizer.off_policy or choices.baseline == "value":
            reference = reference.then(self._forward(part, learns=False).times(rows / part))
        part = min(part, -(-rows // optimizer.minibatches))
        update = self._forward(part, learns=True).times(optimizer.num_iterations * rows / part)
        for model in self.models:
            model.step_tokens = model.tokens
        return {
            "sampling": sampling,
            "reward": reward,
            "log-probabilities": reference,
            "update": update,
        }

    def add_held_out(self) -> None:
        """Add the models of callbacks that score held-out prompts, and their peak memory."""
        for callback in self.callbacks:
            if not isinstance(callback, HeldOutScorer | BeforeAfterMixin):
                continue
            each = callback.generations_per_prompt
            samples = self._completed(callback.prompts, each)
            texts = [str(text) for text in samples.require("prompts", "the callback")]
            width, rows = self._tokens(texts), min(len(texts), PROMPTS_PER_BATCH)
            sampled = self._sampling(min(len(set(texts)), rows), rows, width)
            components = getattr(callback, "_components", callback.components)
            self.held_out_peak = max(self.held_out_peak, sampled.peak)
            self._score(components, samples)

    def described(self) -> list[dict[str, Any]]:
        """Return role, size and place of each model, the policy first."""

        def size(role: str, name: str, model: Any, device: str, tokens: int) -> dict[str, Any]:
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            return {
                "role": role,
                "model": name,
                "parameters": sum(p.numel() for p in model.parameters()) - trained,
                "trained": trained,
                "dtype": str(model.dtype).removeprefix("torch."),
                "device": device,
                "bytes": weight_bytes(model),
                "tokens": tokens,
            }

        tokens = self.prompt_tokens + self.tuner.generation.max_completion_length
        policy = size("policy", self.tuner.base_model, self.policy, self.device, self.rows * tokens)
        policy["bytes"] = self.policy_bytes
        policy["dtype"] = getattr(self.tuner.lora, "quantization", None) or policy["dtype"]
        scorers = [
            size(
                "scorer" if m.step_tokens else "held-out scorer",
                *(m.name, m.model, m.device, m.step_tokens),
            )
            for m in self.models
        ]
        return [policy, *scorers]

    def devices(self, phases: Mapping[str, Cost], process: int) -> dict[str, dict[str, Any]]:
        """Return the parts of each device's peak memory, in bytes.

        `process` are the bytes of Python and its libraries, which count on the CPU.
        """
        result: dict[str, dict[str, Any]] = {}
        for device in dict.fromkeys([self.device, *(model.device for model in self.models)]):
            own, on_cpu = device == self.device, device == "cpu"
            models = [model for model in self.models if model.device == device]
            peaks = [model.peak for model in models]
            weights = sum(weight_bytes(model.model) for model in models)
            weights += self.policy_bytes if own else 0
            if own:
                at_once = phases["update"].peak + max(peaks, default=0)
                together = self.tuner.optimizer.overlap
                peaks += [cost.peak for key, cost in phases.items() if key != "reward"]
                peaks += [self.held_out_peak] + [at_once] * together
            parts = {
                "process": process if on_cpu else 0,
                "weights": weights,
                "packed": self.packed_bytes if own else 0,
                "training": self.training_bytes if own else 0,
                "activations": max(peaks, default=0),
            }
            # The heap also keeps what the other phases had.
            kept = _FRAGMENTATION * parts["activations"] + sum(peaks) - parts["activations"]
            parts["allocator"] = int(kept) if on_cpu else 0
            peak = sum(parts.values())
            if on_cpu:  # a file in float32 is mapped while the last model is loaded
                names = [self.tuner.base_model, *(model.name for model in models)]
                mapped = max(map(file_bytes, names), default=0)
                peak = max(peak, parts["process"] + weights + mapped)
            fits = [size for size in CARDS if peak <= _USABLE * size * 1e9]
            result[device] = {"parts": parts, "peak_bytes": peak, "fits_gb": fits}
        return result


def _cached(cache: Any) -> Iterator[Tensor]:
    """Yield the keys and values of each layer of a cache."""
    for name in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, name):
            yield from _cached(getattr(cache, name))
    for layer in getattr(cache, "layers", ()):
        yield from (layer.keys, layer.values)


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers, shared ones once."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def file_bytes(model: str) -> int:
    """Return the bytes of a model's files, which are mapped while it is loaded."""
    return sum(file.stat().st_size for file in Path(resolve(model)).glob("*.safetensors"))
