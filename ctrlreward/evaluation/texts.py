"""Texts of `ctrlreward evaluate`: a prompt per prefix and combination of labels, completed by the
model, and kept on disk batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import torch
from peft import PeftConfig

from ctrlreward.arguments import did_you_mean
from ctrlreward.data import local_file
from ctrlreward.files import JsonLog
from ctrlreward.policy.model import LoRA, load_base, load_policy
from ctrlreward.policy.prompts import end_of_turn, model_texts
from ctrlreward.policy.rollouts import Generation, add_end_tokens, sample
from ctrlreward.progress import track
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.serving.fingerprint import weights_identity
from ctrlreward.tables.parsing import decode_utf8
from ctrlreward.tables.row_streams import SUFFIXES, read_rows
from ctrlreward.text.sentences import without_unfinished
from ctrlreward.weights.dtypes import Dtype
from ctrlreward.weights.loading import load_config, load_tokenizer

_ADAPTER = "adapter_config.json"
_LAST = "last-adapter"  # of last.ckpt, which `RewardCheckpoint` writes in addition to its selection
_UNUSED = {"num_generations", "temperature"}  # of `Generation`: the other temperature counts

PPLM = "pplm"
_PREFIX = "prefix"
_COLUMNS = ("prefix", "prompt", "text")


class EvaluatedPrompt(NamedTuple):
    """A prompt: the prefix, the model's input, and the target labels by attribute."""

    prefix: str
    prompt: str
    targets: Mapping[str, str]


def read_labels(given: Mapping[str, Sequence[str]] | Sequence[str]) -> dict[str, list[str]]:
    """Return attribute → labels of `["sentiment=negative", "positive", "topic=world"]`."""
    labels: dict[str, list[str]] = {}
    if isinstance(given, Mapping):
        labels = {name: [str(label) for label in each] for name, each in given.items()}
    else:
        attribute = ""
        for word in given:
            name, equals, label = word.partition("=")
            if equals:
                attribute = name.strip()
            elif not attribute:
                raise ValueError(f"labels = {word!r} must be ATTRIBUTE=LABEL,LABEL")
            more = [each for each in (label if equals else word).split(",") if each]
            labels[attribute] = labels.get(attribute, []) + more
    for name, each in labels.items():
        if not name or not each or name == _PREFIX or len(set(each)) < len(each):
            raise ValueError(
                f"labels of {name!r} must be one or more different words, sentiment=negative,"
                f"positive, and the attribute not {_PREFIX!r}; got {', '.join(each) or 'none'}"
            )
    if not labels:
        raise ValueError("labels is empty, must be such as sentiment=negative,positive")
    return labels


def read_prefixes(given: str) -> list[str]:
    """Return the prefixes of a file: one per line, or a column of a JSONL, CSV or Parquet file.

    `pplm` are the 35 prefixes of PPLM, and `pplm/prompts35.csv` is their file.
    """
    path = local_file("pplm/prompts35.csv" if given == PPLM else given)
    if path.suffix in SUFFIXES:
        rows = read_rows(path)
        column = next((name for name in _COLUMNS if name in rows[0]), None)
        if column is None:
            raise ValueError(
                f"{path} has no column {' or '.join(_COLUMNS)}, only {', '.join(rows[0])}"
            )
        prefixes = [str(row[column]) for row in rows]
    elif path.is_file():
        lines = decode_utf8(path.read_bytes(), path).split("\n")
        prefixes = [line.rstrip("\r") for line in lines if line.strip()]
    else:
        hint = " (did you mean 'pplm'?)" if did_you_mean(given, [PPLM]) else ""
        raise FileNotFoundError(f"prefixes = {given!r} does not exist{hint}")
    repeated = next((each for i, each in enumerate(prefixes) if each in prefixes[:i]), None)
    if not prefixes or repeated is not None:
        found = f"{repeated!r} twice" if prefixes else "no prefix"
        raise ValueError(f"{path} has {found}, must have different prefixes")
    return prefixes


def build_prompts(
    prefixes: Sequence[str],
    labels: Mapping[str, Sequence[str]],
    template: str,
    continues: bool = True,
) -> list[EvaluatedPrompt]:
    """Return the prompts; prompts of a combination of labels are consecutive.

    The template has `{prefix}` and the name of each attribute in braces. A model that `continues`
    it needs the prefix at its end; the output of other models is the whole text.
    """
    wanted = [_PREFIX, *labels]
    try:
        slots = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"template = {template!r}: {error}. Write a brace as two.") from error
    for slot in slots:
        if slot not in wanted:
            raise ValueError(
                f"template = {template!r} has {{{slot}}}{did_you_mean(slot, wanted)}, must have "
                f"{', '.join(f'{{{name}}}' for name in wanted)} alone"
            )
    if missing := [name for name in wanted if name not in slots]:
        raise ValueError(
            f"template = {template!r} lacks {', '.join(f'{{{name}}}' for name in missing)}"
        )
    if continues and not template.endswith("{prefix}"):
        raise ValueError(
            f"template = {template!r} must end in {{prefix}}, which the model continues"
        )
    combinations = [dict(zip(labels, each, strict=True)) for each in product(*labels.values())]
    return [
        EvaluatedPrompt(prefix, template.format(prefix=prefix, **targets), targets)
        for targets in combinations
        for prefix in prefixes
    ]


class EvaluatedModel(NamedTuple):
    """Names of a model to evaluate: its base, and the folder of a LoRA adapter or None."""

    base: str
    adapter: str | None

    @property
    def identity(self) -> dict[str, str]:
        """Identities of the weights behind the names, independent of their location."""
        names = self._asdict().items()
        return {key: weights_identity(name) for key, name in names if name is not None}

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
    """Find a full model, or an adapter of a base model, by default the base that it names.

    `model` is a Hugging Face id, a short name, or the folder of a model, of a LoRA adapter, or of a
    run: its selected adapter, or the last one if there is no other.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir() or (folder / "config.json").is_file():
        if base is not None:
            raise ValueError(f"base = {base!r}, but {model} is not the folder of an adapter")
        return EvaluatedModel(model, None)
    found = sorted(path.parent for path in folder.rglob(_ADAPTER))
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


class TextLog:
    """Log of completions: prompts in their order, the completions of a prompt in a row.

    A resumed run must share `identity` and all settings. A text is prefix + completion if the model
    `continues` prefixes, else the completion. `drop` leaves out the last sentence of a completion
    that the limit of tokens cut off.
    """

    def __init__(
        self,
        path: Path,
        prompts: Sequence[EvaluatedPrompt],
        completions: int,
        options: Generation,
        seed: int,
        identity: Mapping[str, Any],
        continues: bool,
        drop: bool,
    ) -> None:
        self.continues, self.drop = continues, drop
        numbers = range(completions)
        self.prompts = [prompt for prompt in prompts for _ in numbers]
        self.seeds = [_seed(seed, prompt.prompt, n) for prompt in prompts for n in numbers]
        self.options = options
        self.sampling = {k: v for k, v in asdict(options).items() if k not in _UNUSED}
        own = {"completions": completions, "sampling": self.sampling, "seed": seed}
        inputs = [prompt.prompt for prompt in prompts]
        self.log = JsonLog(path, {**identity, "prompts": inputs, **own})

    def read(self) -> tuple[list[str], list[bool]]:
        """Return the completions so far, and for each whether an end token ended it."""
        records = self.log.read()
        texts = [text for record in records for text in record["completions"]]
        return texts, [each for record in records for each in record["ended"]]

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
                    rows = slice(start, start + batch_size)
                    inputs = [prompt.prompt for prompt in self.prompts[rows]]
                    texts = model_texts(tokenizer, self.options, inputs)
                    heat, seeds = self.options.eval_temperature, self.seeds[rows]
                    found = sample(loaded, tokenizer, texts, self.options, heat, seeds)
                    ended = found.ended.tolist()
                    self.log.append({"completions": found.completions, "ended": ended})
                    advance(len(inputs))
        return self.read()

    def samples(
        self, completions: Sequence[str] | None = None, ended: Sequence[bool] | None = None
    ) -> Samples:
        """Return the texts with prompts, target labels and a group per prompt.

        `ended` says which completions an end token ended. Without completions, the texts are
        placeholders, to check the labels before generating.
        """
        n = len(self.prompts)
        completions, ended = completions or [" …"] * n, ended or [True] * n
        starts = [prompt.prefix if self.continues else "" for prompt in self.prompts]
        texts = [*Samples(starts, prefixes=starts).completed(completions).texts]
        for i, start in enumerate(starts):
            if self.drop and not ended[i]:
                texts[i] = without_unfinished(texts[i], len(start))
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
