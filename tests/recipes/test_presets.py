"""`configs/presets`: each file on tiny models of its architecture, against the same in code."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
import yaml
from tiny_models import VOCABULARY, byte_tokenizer
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
)

from ctrlreward import Alignment, CTRLEval, Perplexity, Reward, Samples
from ctrlreward.cli import main
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.files import JsonLog
from ctrlreward.jobs.recipes import recipe_text
from ctrlreward.scorers import Accuracy

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 130,
}
_ENCODERS = {"roberta": {}, "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c"]}}
SAMPLES = Samples(
    ["The soup was good. We waited an hour.", "All in all, it was terrible."],
    prefixes=["The soup", "All in all"],
    labels=["positive", "negative"],
    sources=["The food was good, and we waited.", "It was great!"],
    references=["The food was good.", "It was terrible."],
)


def save(folder: Path, family: str, kind: Any, **options: Any) -> str:
    """Save a tiny model with random weights, and a tokenizer with the special tokens."""
    encoder = family in _ENCODERS
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if encoder else ["<|endoftext|>"]
    words = byte_tokenizer(special)
    names = {"eos_token": special[0], "pad_token": special[0]}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if encoder:
        words.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        kinds = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
        names = dict(zip(kinds, special, strict=True))
        ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(family, **_SHAPE, **ids, **_ENCODERS.get(family, {}), **options)
    kind.from_config(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=128, **names).save_pretrained(
        folder
    )
    return str(folder)


def with_models(name: str, **folders: str) -> Path:
    """Write a preset with folders in place of names of models, for the CPU; return the file."""
    text = recipe_text(name).replace("device: cuda", "device: cpu")
    for published, folder in folders.items():
        assert published in text
        text = text.replace(published, folder)
    file = Path(f"{name}.yaml")
    file.write_text(text)
    return file


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def same(file: Path, expected: Reward) -> None:
    given, wanted = build_reward(file)(SAMPLES), expected(SAMPLES)
    assert not wanted.failed.any()
    assert given.components.keys() == wanted.components.keys()
    for name, values in wanted.components.items():
        np.testing.assert_allclose(given.components[name], values, rtol=1e-6)
    np.testing.assert_allclose(given.total, wanted.total, rtol=1e-6)


def test_ctrleval_with_pegasus_and_the_papers_table(pegasus: str) -> None:
    table = Path("iwf_full.txt")
    table.write_text("\n".join(str(1 + i % 7) for i in range(307)))
    scorer = CTRLEval(pegasus, task="sentiment", iwf=table)  # an encoder-decoder's defaults
    aspects = ("coherence", "consistency", "attribute_relevance")
    expected = Reward({aspect: (scorer[aspect], 0.33) for aspect in aspects})
    published = {"google/pegasus-large": pegasus, "ctrleval/iwf_full.txt": str(table)}
    same(with_models("ctrleval_as_published", **published), expected)


def test_fluency_by_gpt2(tiny_causal: Callable[..., str]) -> None:
    gpt2 = tiny_causal("gpt2")
    file = with_models("fluency_gpt2_large", **{"openai-community/gpt2-large": gpt2})
    same(file, Reward({"fluency": Perplexity(gpt2)["log_likelihood"]}))


def test_aligners_with_roberta(tmp_path: Path) -> None:
    kind = AutoModelForTokenClassification
    labels = {0: "aligned", 1: "hallucinated"}
    folder = save(tmp_path / "d", "roberta", kind, id2label=labels)
    file = with_models("aligners_ctc", **{"aligners/cnndm": folder})

    def scored(aspect: Any) -> Any:
        return Alignment(folder, aspect, method="discriminative")[aspect]

    same(file, Reward({aspect: scored(aspect) for aspect in ("consistency", "relevance")}))


@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_policies_have_the_prompts_and_the_reward_of_the_recipe_that_they_extend(name: str) -> None:
    merged = yaml.safe_load(recipe_text(f"sentiment_{name}", resolve=True))
    base = yaml.safe_load(recipe_text("sentiment_smollm2", resolve=True))
    model, theirs = merged["model"]["init_args"], base["model"]["init_args"]
    assert model["optimizer"] == {"learning_rate": 1.0e-4, "warmup_steps": 5}
    assert model["reward"]["init_args"].pop("device") == "cuda"
    assert theirs["reward"]["init_args"].pop("device") == "cpu"
    for part in ("reward", "objective", "generation", "lora"):
        assert model[part] == theirs[part]
    assert merged["data"] == base["data"]


@pytest.mark.soak
def test_a_policy_trains(workplace: dict[str, str], tmp_path: Path) -> None:
    folder = save(tmp_path / "qwen2", "qwen2", AutoModelForCausalLM)
    merged = yaml.safe_load(recipe_text("sentiment_qwen", resolve=True))
    options = [f"--model.init_args.model={folder}", "--trainer.accelerator=cpu", "--smoke"]
    Path("on_cpu.yaml").write_text(
        yaml.safe_dump(merged, sort_keys=False).replace("device: cuda", "device: cpu")
    )
    main(["train", "on_cpu.yaml", *options])
    wandb.finish()
    (root,) = tmp_path.glob("*-smoke-*")
    assert len(JsonLog(root / "metrics.jsonl").read()) >= 2


@pytest.mark.parametrize("name", ["roberta", "deberta"])
def test_classifiers_train_and_judge(name: str, data_dir: Path, tmp_path: Path) -> None:
    family = {"roberta": "roberta", "deberta": "deberta-v2"}[name]
    folder = save(tmp_path / family, family, AutoModel)
    merged = yaml.safe_load(recipe_text(f"classifier_{name}", resolve=True))
    merged["model"]["init_args"]["model"] = folder
    merged["trainer"]["accelerator"] = "cpu"
    Path("job.yaml").write_text(yaml.safe_dump(merged, sort_keys=False))
    main(["train", "job.yaml", "--smoke"])
    (root,) = tmp_path.glob("*-smoke-*")
    (trained,) = (
        root.rglob("trained/*/model") if list(root.rglob("trained")) else root.glob("model")
    )
    scores = Accuracy(str(trained)).score(SAMPLES)
    assert np.isfinite(scores["label_probability"]).all()
