"""Completions of `ctrlreward evaluate`, kept on disk batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftConfig
from transformers import PreTrainedTokenizerBase

from ctrlreward.commands.evaluation_prompts import EvaluatedPrompt
from ctrlreward.files import JsonLog
from ctrlreward.policy.model import LoRA, load_base, load_policy
from ctrlreward.policy.prompts import end_of_turn, model_texts
from ctrlreward.policy.rollouts import Generation, add_end_tokens, sample
from ctrlreward.progress import track
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.serving.fingerprint import weights_identity
from ctrlreward.text.sentences import without_unfinished
from ctrlreward.weights.dtypes import Dtype
from ctrlreward.weights.loading import load_config, load_tokenizer

_ADAPTER = "adapter_config.json"
_LAST = "last-adapter"  # of last.ckpt, which `RewardCheckpoint` writes in addition to its selection
_UNUSED = {"num_generations", "temperature"}  # of `Generation`: the other temperature counts


class EvaluatedModel(NamedTuple):
    """Names of a model to evaluate: its base, and the folder of a LoRA adapter or None."""

    base: str
    adapter: str | None

    @property
    def identity(self) -> dict[str, str]:
        """Identities of the weights behind the names, independent of their location."""
        found = {"base": weights_identity(self.base)}
        return (
            found if self.adapter is None else found | {"adapter": weights_identity(self.adapter)}
        )

    @property
    def has_encoder(self) -> bool:
        """True for an encoder-decoder."""
        return bool(load_config(self.base).is_encoder_decoder)

    def load(self, device: str, dtype: Dtype | None) -> Any:
        """Load the model in evaluation mode."""
        if self.adapter is None:
            model: Any = load_base(self.base, dtype, None, device)
        else:
            model = load_policy(self.base, LoRA(dtype=dtype, adapter=self.adapter), device)
        return model.eval().requires_grad_(False).to(torch.device(device))


def find_model(model: str, base: str | None = None) -> EvaluatedModel:
    """Find a model by its name: a full model, or an adapter of a base model.

    Args:
        model: Hugging Face id, short name, folder of a model, folder of a LoRA adapter, or folder
            of a run: its selected adapter, or the last one if there is no other.
        base: Base model of the adapter; None for the base that the adapter names.

    Raises:
        ValueError: A folder has several adapters, or a base is given without an adapter.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir() or (folder / "config.json").is_file():
        if base is not None:
            raise ValueError(f"base = {base!r}, but {model} is not the folder of an adapter")
        return EvaluatedModel(model, None)
    found = sorted({path.parent for path in folder.rglob(_ADAPTER)})
    found = [path for path in found if path.name != _LAST] or found
    if len(found) > 1:
        raise ValueError(
            f"{model} has {len(found)} adapters, choose one of {', '.join(map(str, found))}"
        )
    if not found:
        return EvaluatedModel(model, None)  # its loader reports what the folder lacks
    name = base or PeftConfig.from_pretrained(str(found[0])).base_model_name_or_path
    if not name:
        raise ValueError(f"{found[0] / _ADAPTER} does not name a base model. Pass base.")
    if base is None and Path(name).is_absolute() and not Path(name).is_dir():
        raise ValueError(
            f"{found[0]} was trained on {name}, which is not on this machine. Pass the base model "
            "with --base."
        )
    return EvaluatedModel(name, str(found[0]))


class TextOptions(NamedTuple):
    """How a text is made of a completion.

    `continues` is True if the text is prefix + completion, else it is the completion. `drop` leaves
    out the last sentence of a completion that the limit of tokens cut off.
    """

    continues: bool
    drop: bool


class TextLog:
    """Log of completions: prompts in their order, the completions of a prompt in a row.

    Args:
        path: The JSON Lines file; each record is a batch.
        prompts: All prompts.
        completions: Completions per prompt.
        options: How completions are sampled.
        seed: Seed of the evaluation.
        identity: Further settings that a resumed run must share.
    """

    def __init__(
        self,
        path: Path,
        prompts: Sequence[EvaluatedPrompt],
        completions: int,
        options: Generation,
        seed: int,
        identity: Mapping[str, Any],
    ) -> None:
        self.prompts = [prompt for prompt in prompts for _ in range(completions)]
        self.seeds = [
            _seed(seed, prompt.prompt, number)
            for prompt in prompts
            for number in range(completions)
        ]
        self.options = options
        self.sampling = {k: v for k, v in asdict(options).items() if k not in _UNUSED}
        own = {
            "prompts": [prompt.prompt for prompt in prompts],
            "completions": completions,
            "sampling": self.sampling,
            "seed": seed,
        }
        self.log = JsonLog(path, {**identity, **own})

    def read(self) -> tuple[list[str], list[bool]]:
        """Return the completions so far, and for each whether an end token ended it."""
        records = self.log.read()
        texts = [text for record in records for text in record["completions"]]
        ended = [each for record in records for each in record["ended"]]
        if len(texts) > len(self.prompts) or len(texts) != len(ended):
            raise ValueError(f"{self.log.path} has {len(texts)} completions. Delete it.")
        return texts, ended

    def complete(
        self, model: EvaluatedModel, device: str, dtype: Dtype | None, batch_size: int
    ) -> tuple[list[str], list[bool]]:
        """Sample missing completions, and return all completions as `read` does."""
        done = len(self.read()[0])
        total = len(self.prompts)
        if done < total:
            loaded, tokenizer = model.load(device, dtype), load_tokenizer(model.base)
            turn = end_of_turn(tokenizer, self.options, model.base) if self.options.chat else []
            add_end_tokens(loaded, tokenizer, self.options.stop, turn)
            with track("generating", total, done=done) as advance:
                for start in range(done, total, batch_size):
                    rows = slice(start, min(start + batch_size, total))
                    self._append(loaded, tokenizer, rows)
                    advance(rows.stop - rows.start)
        return self.read()

    def _append(self, model: Any, tokenizer: PreTrainedTokenizerBase, rows: slice) -> None:
        prompts = [prompt.prompt for prompt in self.prompts[rows]]
        texts = model_texts(tokenizer, self.options, prompts)
        temperature = self.options.eval_temperature
        rollout = sample(model, tokenizer, texts, self.options, temperature, self.seeds[rows])
        self.log.append({"completions": rollout.completions, "ended": rollout.ended.tolist()})

    def planned(self) -> tuple[list[str], list[bool]]:
        """Return placeholder completions, to check the labels before generating."""
        return [" …"] * len(self.prompts), [True] * len(self.prompts)

    def samples(
        self, completions: Sequence[str], ended: Sequence[bool], options: TextOptions
    ) -> Samples:
        """Return the texts with prompts, target labels and a group per prompt.

        Args:
            completions: Completion of each prompt.
            ended: Whether an end token ended it.
            options: How texts are made of completions.
        """
        texts = []
        starts = [prompt.prefix if options.continues else "" for prompt in self.prompts]
        for start, completion, complete in zip(starts, completions, ended, strict=True):
            text = start + completion
            drop = options.drop and not complete
            texts.append(without_unfinished(text, len(start)) if drop else text)
        labels = [attribute_label(prompt.targets) for prompt in self.prompts]
        return Samples(
            texts=texts,
            prefixes=starts,
            prompts=[prompt.prompt for prompt in self.prompts],
            labels=labels,
            groups=[f"{label}\n{p.prefix}" for label, p in zip(labels, self.prompts, strict=True)],
        )


def _seed(seed: int, prompt: str, number: int) -> int:
    """Return the seed of a prompt's completion, independent of all other prompts."""
    digest = hashlib.sha256(f"{seed}\0{number}\0{prompt}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
