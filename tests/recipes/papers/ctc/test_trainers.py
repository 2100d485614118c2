from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiny_aligners import SENTENCES
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)

from ctrlreward.files import JsonLog
from ctrlreward.jobs.training_job import TrainCLI, build
from ctrlreward.models.aligner import RegressionAligner, TokenAligner
from ctrlreward.models.pairs import encode_pairs
from ctrlreward.recipes.papers.ctc.labelled_pairs import AlignmentPair
from ctrlreward.recipes.papers.ctc.pair_file import AlignmentData, PairFile, read_pair_file
from ctrlreward.recipes.papers.ctc.trainers import (
    NO_LABEL,
    RegressionAlignerTrainer,
    TokenAlignerTrainer,
    alignment_labels,
)
from ctrlreward.scorers.alignment import Alignment
from ctrlreward.text.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.weights.sources import TRAINED_NAMES

CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "alignment"
TEXTS = SENTENCES
ALPHABET = "abcdefghijklmnopqrstuvwxyz .,!"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny random BERT without a head, whose vocabulary is the words of the texts."""
    folder = tmp_path_factory.mktemp("encoder")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    known = [*special, *sorted(set(" ".join(TEXTS).split()))]
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True)),
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(known),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def configured(
    tmp_path: Path, encoder: str, tiny_llama: Callable[[str], str]
) -> Callable[..., TrainCLI]:
    """Builds the MiniLM configuration with tiny models and eight texts."""
    texts = tmp_path / "texts"
    texts.write_text("\n".join(TEXTS))
    changes = {
        "model.init_args.encoder": encoder,
        "data.init_args.pairs.texts": f"[{texts}]",
        "data.init_args.pairs.exclude": "[]",
        "data.init_args.pairs.file": tmp_path / "pairs.jsonl",
        "data.init_args.pairs.count": len(TEXTS),
        "data.init_args.pairs.infiller": tiny_llama(ALPHABET),
        "data.init_args.validation_share": 0.25,
        "data.init_args.batch_size": 4,
        "model.init_args.learning_rate": 3e-3,
        "trainer.enable_progress_bar": "false",
    }

    def make(name: str, trainer: str, epochs: int, **more: object) -> TrainCLI:
        folder = tmp_path / name
        arguments = [f"--config={CONFIGS / 'yelp_minilm.yaml'}"]
        arguments.append(f"--model.class_path=ctrlreward.recipes.papers.ctc.trainers.{trainer}")
        where = {
            "model.init_args.folder": folder / "model",
            "trainer.default_root_dir": folder,
            "trainer.logger.init_args.folder": folder,
            "trainer.max_epochs": epochs,
        }
        arguments += [f"--{key}={value}" for key, value in {**changes, **where, **more}.items()]
        return build(arguments)

    return make


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_d_learns_the_labels_of_its_pairs(
    configured: Callable[..., TrainCLI], tmp_path: Path
) -> None:
    cli = configured("d", "TokenAlignerTrainer", 6)
    cli.trainer.fit(cli.model, cli.datamodule)
    rows = JsonLog(tmp_path / "d" / "metrics.jsonl").read()
    validations = [row for row in rows if "val_loss" in row]
    losses = [row["val_loss"] for row in validations]
    assert len(losses) == 12  # twice an epoch
    assert min(losses) < losses[0]
    for name in ("val_f1_hallucinated", "val_auc"):
        values = [row[name] for row in rows if name in row]
        assert len(values) == 12
        assert all(0 <= value <= 1 for value in values)
    pairs = read_pair_file(str(tmp_path / "pairs.jsonl"))
    splits = cli.datamodule.splits
    validation = splits["validation"]
    assert sorted(splits["train"] + validation) == sorted(pairs)
    assert not {p.source for p in splits["train"]} & {p.source for p in validation}

    # The folder holds the model of the first validation with the best F1, which has its loss again.
    _, best = max((row["val_f1_hallucinated"], -i) for i, row in enumerate(validations))
    aligner = TokenAligner(str(tmp_path / "d" / "model"))
    aligned = list(aligner.align([(pair.a, pair.b) for pair in validation]))
    per_batch = []
    for start in range(0, len(aligned), 4):
        right = []
        for pair, alignment in zip(validation, aligned, strict=True):
            wrong = {i for s, e in pair.hallucinated for i in range(s, e)}
            for (s, e), value in zip(alignment.spans, alignment.values, strict=True):
                right.append((pair, value if not wrong & set(range(s, e)) else 1 - value))
        chosen = validation[start : start + 4]
        values = [value for pair, value in right if any(pair is one for one in chosen)]
        per_batch.append((len(chosen), -np.mean(np.log(values))))
    loss = sum(n * value for n, value in per_batch) / len(aligned)
    assert loss == pytest.approx(losses[-best], rel=1e-4)

    # `validate` uses the trained model and writes nothing.
    before, module = written(tmp_path / "d" / "model"), cli.model.model
    (again,) = cli.trainer.validate(cli.model, cli.datamodule, verbose=False)
    assert cli.model.model is module
    assert again["val_loss"] == pytest.approx(losses[-1], rel=1e-2)  # one more step followed
    assert written(tmp_path / "d" / "model") == before


@pytest.mark.parametrize("target", ["mean", "sum"])
def test_r_learns_the_mean_or_the_sum(
    configured: Callable[..., TrainCLI], tmp_path: Path, target: str
) -> None:
    cli = configured("r", "RegressionAlignerTrainer", 3, **{"model.init_args.target": target})
    cli.trainer.fit(cli.model, cli.datamodule)
    losses = [
        row["val_mse"]
        for row in JsonLog(tmp_path / "r" / "metrics.jsonl").read()
        if "val_mse" in row
    ]
    pairs = cli.datamodule.splits["validation"]
    aligned = RegressionAligner(str(tmp_path / "r" / "model")).align([(p.a, p.b) for p in pairs])
    labels = []
    for pair in pairs:
        wrong = {i for start, end in pair.hallucinated for i in range(start, end)}
        words = list(re.finditer(r"\S+", pair.a))
        right = [m.group() for m in words if not {*range(*m.span())} & wrong]
        content = [word for word in right if word not in ENGLISH_STOP_WORDS]
        labels.append(len(right) / len(words) if target == "mean" else len(content))
    errors = [(a.values[0] - label) ** 2 for a, label in zip(aligned, labels, strict=True)]
    assert np.mean(errors) == pytest.approx(min(losses), rel=1e-3)


def with_worse_validations(factor: float) -> Callable[..., torch.Tensor]:
    """Returns the loss of a token aligner, multiplied by a factor in validations."""
    loss = TokenAlignerTrainer.loss

    def changed(self: TokenAlignerTrainer, *arguments: Any) -> torch.Tensor:
        return loss(self, *arguments) * (1 if self.training else factor)

    return changed


def test_only_a_better_validation_replaces_a_model(
    configured: Callable[..., TrainCLI], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenAlignerTrainer, "selected_by", ("val_loss", -1))
    cli = configured("d", "TokenAlignerTrainer", 1)
    cli.trainer.fit(cli.model, cli.datamodule)
    before, best = written(tmp_path / "d" / "model"), cli.model.best
    assert best is not None
    cli.trainer.save_checkpoint(tmp_path / "checkpoint")

    monkeypatch.setattr(TokenAlignerTrainer, "loss", with_worse_validations(9.0))
    resumed = configured("d", "TokenAlignerTrainer", 2)
    resumed.trainer.fit(resumed.model, resumed.datamodule, ckpt_path=tmp_path / "checkpoint")
    assert -resumed.trainer.callback_metrics["val_loss"].item() < best
    assert resumed.model.best == best
    assert written(tmp_path / "d" / "model") == before

    monkeypatch.setattr(TokenAlignerTrainer, "loss", with_worse_validations(float("nan")))
    without = configured("d", "TokenAlignerTrainer", 1)
    with pytest.warns(UserWarning, match="no validation had a finite loss: .*model was not writ"):
        without.trainer.fit(without.model, without.datamodule)
    assert written(tmp_path / "d" / "model") == before


def test_a_trial_run_writes_no_model(configured: Callable[..., TrainCLI], tmp_path: Path) -> None:
    cli = configured("d", "TokenAlignerTrainer", 1, **{"trainer.fast_dev_run": "true"})
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.global_step == 1
    assert not (tmp_path / "d" / "model").exists()


def test_without_validations_the_last_model_is_written(
    configured: Callable[..., TrainCLI], tmp_path: Path
) -> None:
    cli = configured("d", "TokenAlignerTrainer", 1, **{"trainer.limit_val_batches": 0})
    cli.trainer.fit(cli.model, cli.datamodule)
    aligner = TokenAligner(str(tmp_path / "d" / "model"))
    trained = cli.model.model.classifier.weight
    torch.testing.assert_close(aligner.model.classifier.weight, trained.detach())


def test_a_folder_of_other_files_is_refused(
    configured: Callable[..., TrainCLI], tmp_path: Path
) -> None:
    cli = configured("d", "TokenAlignerTrainer", 1, **{"model.init_args.folder": tmp_path})
    with pytest.raises(
        ValueError, match=rf"folder = '{tmp_path}' exists and does not contain a model"
    ):
        cli.trainer.fit(cli.model, cli.datamodule)
    assert {"texts", "pairs.jsonl"} <= {file.name for file in tmp_path.iterdir()}
    assert cli.trainer.global_step == 0


@pytest.mark.parametrize("share", [0, 1.0])
def test_both_splits_need_texts(share: float) -> None:
    pairs = PairFile("pairs.jsonl", ["texts"], 2)
    with pytest.raises(
        ValueError, match=rf"validation_share must be between 0 and 1, exclusive, got {share}"
    ):
        AlignmentData(pairs, validation_share=share)


def test_pairs_are_not_built_twice(configured: Callable[..., TrainCLI], tmp_path: Path) -> None:
    configured("d", "TokenAlignerTrainer", 1).datamodule.prepare_data()
    again = configured(
        "r", "RegressionAlignerTrainer", 1, **{"data.init_args.pairs.device": "nowhere"}
    )
    again.datamodule.prepare_data()  # would fail if it loaded a model
    for name, value in {"temperature": 0.5, "dtype": "bfloat16"}.items():
        setting = {f"data.init_args.pairs.{name}": value}
        changed = configured("d", "TokenAlignerTrainer", 1, **setting)
        with pytest.raises(ValueError, match=f"was started with other settings: {name}"):
            changed.datamodule.prepare_data()


def test_a_token_that_touches_a_span_is_hallucinated(encoder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    pair = AlignmentPair(0, "the soup was cold .", "the soup was small .", ((13, 17),))
    (encoded,) = encode_pairs(tokenizer, [(pair.a, pair.b)], 64)
    assert alignment_labels(encoded, pair) == [1, 1, 1, 0, 1]
    assert alignment_labels(encoded, pair._replace(hallucinated=((5, 14),))) == [1, 0, 0, 0, 1]
    assert alignment_labels(encoded, pair._replace(hallucinated=())) == [1] * 5


def test_the_papers_config_is_built_without_loading_anything() -> None:
    config = CONFIGS / "paper_roberta_large.yaml"
    assert yaml.safe_load(config.read_text())["trainer"]["accelerator"] == "gpu"
    cli = build([f"--config={config}", "--trainer.accelerator=cpu", "--trainer.precision=32-true"])
    assert cli.model.encoder == "FacebookAI/roberta-large"
    assert cli.datamodule.pair_file.infiller == "facebook/bart-large"
    regression = "ctrlreward.recipes.papers.ctc.trainers.RegressionAlignerTrainer"
    arguments = [f"--config={config}", "--trainer.accelerator=cpu", "--trainer.precision=32-true"]
    cli = build([*arguments, f"--model.class_path={regression}", "--model.init_args.target=sum"])
    assert cli.model.target == "sum"


def test_words_without_a_label_count_nowhere(encoder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    pair = AlignmentPair(0, "the soup was cold .", "the soup was small .", ((13, 17),), ((0, 8),))
    (encoded,) = encode_pairs(tokenizer, [(pair.a, pair.b)], 64)
    assert alignment_labels(encoded, pair) == [NO_LABEL, NO_LABEL, 1, 0, 1]
    both = pair._replace(unknown=((0, 17),))
    assert alignment_labels(encoded, both) == [NO_LABEL] * 3 + [0, 1]
    trainers = [TokenAlignerTrainer(encoder), RegressionAlignerTrainer(encoder)]
    for trainer in trainers:
        torch.manual_seed(0)
        trainer.configure_model()
        trainer.eval()  # no dropout
    d, r = (trainer._batch_loss([pair]) for trainer in trainers)
    (logits,) = trainers[0].model(**tokenizer(pair.a, pair.b, return_tensors="pt")).logits
    aligned = logits.softmax(-1)[1:6, 1].tolist()  # behind [CLS]
    assert d.item() == pytest.approx(-np.log([aligned[2], 1 - aligned[3], aligned[4]]).mean(), 1e-4)
    predicted = trainers[1].model(**tokenizer(pair.a, pair.b, return_tensors="pt")).logits.item()
    assert r.item() == pytest.approx((predicted - 2 / 3) ** 2, rel=1e-4)


@pytest.mark.parametrize("decoder", [False, True])
def test_upper_layers_are_dropped_and_lower_ones_frozen(
    configured: Callable[..., TrainCLI],
    tmp_path: Path,
    encoder: str,
    tiny_causal: Callable[..., str],
    decoder: bool,
) -> None:
    """A decoder reads the context first, without being told."""
    base = tiny_causal("llama") if decoder else encoder
    total = AutoConfig.from_pretrained(base).num_hidden_layers
    assert total == 2
    cli = configured(
        "d",
        "TokenAlignerTrainer",
        2,
        **{
            "model.init_args.encoder": base,
            "model.init_args.layers": 1 if decoder else 2,
            "model.init_args.frozen_layers": 0 if decoder else 1,
        },
    )
    cli.trainer.fit(cli.model, cli.datamodule)
    aligner = TokenAligner(str(tmp_path / "d" / "model"))
    assert aligner.model.config.aligner_b_first == decoder
    before = AutoModel.from_pretrained(base).state_dict()
    after = aligner.model.base_model.state_dict()
    assert after.keys() <= before.keys()
    changed = {key for key in after if not torch.equal(before[key], after[key])}
    if decoder:
        assert not any("layers.1." in key for key in after)
        assert any("layers.0." in key for key in changed)
    else:
        assert changed
        assert all("layer.1." in key for key in changed)


@pytest.mark.parametrize("option", ["layers", "frozen_layers"])
def test_more_layers_than_there_are(encoder: str, option: str) -> None:
    trainer = TokenAlignerTrainer(encoder, **{option: 3})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="= 3 must be 0 to 2, the layers of"):
        trainer.configure_model()


def test_a_name_is_a_folder_of_the_cache(
    configured: Callable[..., TrainCLI], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    name = {"model.init_args.folder": "aligner-consistency"}
    cli = configured("d", "TokenAlignerTrainer", 1, **name)
    cli.trainer.fit(cli.model, cli.datamodule)
    scorer = Alignment("aligner-consistency", "preservation", method="discriminative")
    values = scorer.score(TEXTS[:2], sources=TEXTS[1:3])["preservation"]
    assert np.isfinite(values).all()
    assert (tmp_path / "cache" / "aligner-consistency" / "config.json").is_file()


@pytest.mark.parametrize("name", sorted(TRAINED_NAMES))
def test_a_built_in_aligner_trains_as_configured(
    name: str,
    tmp_path: Path,
    encoder: str,
    tiny_llama: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its configuration, with tiny models and texts of ours in place of WikiText and novels."""
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    texts = tmp_path / "texts"
    texts.write_text(
        "\n\n".join(
            " ".join(f"{text[:-2].capitalize()} {i} times, said Arlen." for text in TEXTS)
            for i in range(6)
        )
    )
    config = CONFIGS.parents[1] / TRAINED_NAMES[name]
    settings = yaml.safe_load(config.read_text())["data"]["init_args"]
    small: dict[str, object] = {
        "model.init_args.encoder": encoder,
        "model.init_args.layers": 2,
        "model.init_args.frozen_layers": 1,
        "data.init_args.pairs.file": tmp_path / "pairs.jsonl",
        "data.init_args.pairs.texts": f"[{texts}]",
        "data.init_args.pairs.exclude": "[]",
        "data.init_args.pairs.infiller": tiny_llama(ALPHABET),
        "data.init_args.pairs.count": 4,
        "data.init_args.validation_share": 0.25,
        "trainer.max_epochs": 1,
        "trainer.precision": "32-true",
        "trainer.default_root_dir": tmp_path,
        "trainer.logger.init_args.folder": tmp_path,
        "trainer.enable_progress_bar": "false",
    }
    if settings["pairs"].get("passage_words"):
        small["data.init_args.pairs.passage_words"] = "[20, 60]"
    if "passages" in settings:
        small["data.init_args.passages.texts"] = f"[{texts}]"
        small["data.init_args.passages.words"] = "[20, 60]"
        small["data.init_args.passages.count"] = 6
    cli = build([f"--config={config}", *(f"--{key}={value}" for key, value in small.items())])
    cli.trainer.fit(cli.model, cli.datamodule)
    sources = {pair.source for split in cli.datamodule.splits.values() for pair in split}
    # Without extra pairs, a text that the infiller has no words for gives none.
    assert 0 <= len(sources) - 6 * ("passages" in settings) <= 4
    aligner = TokenAligner(name)
    assert [len(a.spans) for a in aligner.align([(TEXTS[0], TEXTS[1])])] == [9]
