from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from lightning_choice import quiet_trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from ctrlreward import Distinct, LexiconSentiment, Reward, Samples, functional
from ctrlreward.callbacks import BeforeAfter, GenerationScorer
from ctrlreward.command_line.config_files import read_job, resolved
from ctrlreward.files import JsonLog
from ctrlreward.jobs.training_job import TrainCLI, build
from ctrlreward.plots import curve
from ctrlreward.policy import LoRA, PolicyTuner
from ctrlreward.recipes.scoring_models.text_cnn import (
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    frequent_words,
    save_text_cnn,
)
from ctrlreward.recipes.style_transfer import (
    ScoringModels,
    Sentences,
    TransferData,
    before_after,
    held_out_scorer,
    transfer_reward,
)
from ctrlreward.recipes.text_files import matching_key, read_held_out

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "style_transfer" / "yelp_smollm2.yaml"
LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,:!'$_"
TEMPLATE = "{source_style}: {source}\n{style}:"
SOUR = [f"the {thing} was so cold ." for thing in ("soup", "room", "bus", "play")]
SWEET = [f"the {thing} was so lovely ." for thing in ("soup", "room", "bus", "play")]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sour").write_text("\n".join([*SOUR, "too short", SOUR[0]]))
    (tmp_path / "sweet").write_text("\n".join(SWEET))
    return {"sour": str(tmp_path / "sour"), "sweet": str(tmp_path / "sweet")}


# The data


def test_each_sentence_has_the_other_style_as_its_target(files: dict[str, str]) -> None:
    prompts = Sentences(files, TEMPLATE, 4).prompts()
    assert sorted(prompts.sources[:4]) == sorted(SOUR)
    assert sorted(prompts.sources[4:]) == sorted(SWEET)
    assert prompts.labels == ("sweet",) * 4 + ("sour",) * 4
    assert prompts.texts == prompts.prefixes == ("",) * 8
    assert prompts.prompts[0] == f"sour: {prompts.sources[0]}\nsweet:"
    assert prompts.prompts[7] == f"sweet: {prompts.sources[7]}\nsour:"


def test_training_leaves_out_what_is_held_out(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "held_out").write_text(f"{SOUR[0].upper()}\n{SWEET[1]}\tx\n")
    sentences = Sentences(files, TEMPLATE, 3, [str(tmp_path / "held_out")])
    data = TransferData(sentences, batch_size=2, steps=3)
    data.prepare_data()
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [2, 2, 2]
    read = {source for batch in batches for source in batch.sources}
    assert read == {*SOUR[1:], SWEET[0], *SWEET[2:]}
    assert len(next(iter(data.val_dataloader()))) == 1


# The scores


def save_judge(folder: Path, *labels: str) -> None:
    config = TextCNNConfig(frequent_words(SOUR + SWEET, 1), labels, 8, (2,), 4, 0.0)
    save_text_cnn(TextCNN(config), folder)


@pytest.fixture
def scoring_models(tiny_llama: Callable[[str], str], tmp_path: Path) -> ScoringModels:
    folder = tmp_path / "judge"
    folder.mkdir()
    save_judge(folder, "sour", "sweet")
    letters = tiny_llama(" abcdefghijklmnopqrstuvwxyz.")
    judge = TextCNNClassifier(str(folder))
    return ScoringModels(judge, "minilm-l6", letters, thresholds=(-8.0, -100.0, 1e6, -1e6))


def test_the_reward_is_the_weighted_sum_of_gm_and_its_components(
    scoring_models: ScoringModels,
) -> None:
    weights = {"label_probability": 2.0, "similarity": 0.5, "log_likelihood": 0.1, "gm": 0.01}
    reward = transfer_reward(weights, scoring_models)
    texts = Samples(["the soup was hot .", "a bus ."], labels=["sweet", "sour"], sources=SOUR[:2])
    batch = reward(texts)
    reward.release()
    total = sum(weight * batch.components[name] for name, weight in weights.items())
    assert batch.total == pytest.approx(total)
    sides = [batch.components[name] for name in ("label_probability", "similarity")]
    likely = batch.components["log_likelihood"]
    for i in range(2):
        acc, sim, pp = sides[0][i], sides[1][i], math.exp(-likely[i])
        fluency = min(1e6 - pp, pp + 1e6)
        expected = ((100 * acc + 8) * (100 * sim + 100) * fluency) ** (1 / 3)
        assert batch.components["gm"][i] == pytest.approx(expected)


def test_callbacks_share_their_models_and_copying_is_compared(files, scoring_models) -> None:
    watch = held_out_scorer(Sentences(files, TEMPLATE, 2), scoring_models)
    report = before_after(Sentences(files, TEMPLATE, 3), scoring_models)
    for name, component in report.components.items():
        assert component.scorer is watch.components[name].scorer
    assert next(iter(report.components)) == "gm"
    assert (len(watch.samples), len(report.samples)) == (4, 6)
    copies = report.others["copying"]
    assert copies.texts == copies.sources == report.samples.sources
    assert copies.labels == report.samples.labels


# The configuration


def settings(tmp_path: Path) -> dict[str, Any]:
    """The shipped configuration, with the path of a temporary folder."""
    found: Any = resolved(read_job(CONFIG), {"trainer.default_root_dir": str(tmp_path / "run")})
    del found["values"]
    return found


def write_data(folder: Path) -> Path:
    """Write the files that the configuration reads, with four sentences of our own in each."""
    files = ["yelp_shen/sentiment.test", "yelp_shen/sentiment.dev"]
    files += ["li2018/sentiment.test", "li2018/reference"]
    for day, file in zip("monday tuesday friday sunday".split(), files, strict=True):
        for label, sentences in enumerate((SOUR, SWEET)):
            path = folder / f"{file}.{label}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"on {day} {sentence}\n" for sentence in sentences))
    return folder


def built(settings: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> TrainCLI:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that the one set by the command line is undone
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return build(["--config", str(folder / "config.yaml")])


@pytest.mark.soak
def test_training_selection_and_report_have_sentences_of_their_own(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = built(settings(tmp_path), tmp_path, monkeypatch)
    assert not list(cli.model.children())  # nothing is loaded
    cli.datamodule.setup("fit")
    (watch,) = (c for c in cli.trainer.callbacks if isinstance(c, GenerationScorer))
    (report,) = (c for c in cli.trainer.callbacks if isinstance(c, BeforeAfter))
    sets = [cli.datamodule.prompts, watch.samples, report.samples]
    sources = [{matching_key(source) for source in samples.sources} for samples in sets]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert sources[i].isdisjoint(sources[j])
    for samples in sets:
        assert samples.labels.count("negative") * 2 == len(samples)
    assert len(report.samples) == 1000
    rated = map(str, (data_dir / "li2018").glob("*.[01]"))
    assert sources[0].isdisjoint(read_held_out(rated))


JUDGE = "ctrlreward.recipes.scoring_models.text_cnn.TextCNNClassifier"
# As in a YAML file: a mean, and a ranking.
JUDGES = """
sentiment_accuracy:
  class_path: ctrlreward.scorers.Component
  init_args: {scorer: {class_path: ctrlreward.scorers.LexiconSentiment}, name: accuracy}
sentiment_auc:
  class_path: ctrlreward.callbacks.AUC
  init_args:
    component: {scorer: ctrlreward.scorers.LexiconSentiment, name: polarity}
    positive: positive
"""


def test_a_small_run_writes_all_results(
    scoring_models, tiny_llama, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("CTRLREWARD_DATA", str(write_data(tmp_path / "data")))
    config = settings(tmp_path)
    judge = Path(scoring_models.classifier.folder)
    save_judge(judge, "negative", "positive")
    classifier = {"class_path": JUDGE, "init_args": {"folder": str(judge)}}
    small = tiny_llama(LETTERS)
    model, data, trainer = (config[key] for key in ("model", "data", "trainer"))
    model["init_args"]["model"] = small
    model["init_args"]["generation"] |= {"num_generations": 2, "max_completion_length": 8}
    warm_up = PolicyTuner(small, Reward({"length": Distinct()["distinct_1"]}), lora=LoRA(r=2))
    warm_up.export_adapter(tmp_path / "adapter")
    model["init_args"]["lora"]["adapter"] = str(tmp_path / "adapter")
    jobs = [c["init_args"] for c in trainer["callbacks"] if "style_transfer." in c["class_path"]]
    for arguments in (model["init_args"]["reward"]["init_args"], *jobs):
        if "scoring_models" in arguments:
            arguments["scoring_models"] |= {
                "classifier": classifier,
                "language_model": small,
                "encoder": "minilm-l6",
                "thresholds": [-8.0, -100.0, 1e6, -1e6],
            }
        if "sentences" in arguments:
            arguments["sentences"]["count"] = 3
    jobs[0]["others"]["independent"]["init_args"]["scorer"]["init_args"]["model"] = classifier
    jobs[-1]["judges"] = yaml.safe_load(JUDGES)
    data["init_args"]["sentences"]["count"] = 4
    data["init_args"] |= {"batch_size": 2, "models": []}
    trainer |= {"max_steps": 2, "val_check_interval": 1, "enable_progress_bar": False}
    trainer["logger"] = trainer["logger"][:1]
    cli = built(config, tmp_path, monkeypatch)
    cli.trainer.fit(cli.model, cli.datamodule)

    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["score"] == "gm"
    assert summary["steps"] == 2
    copying = summary["others"]["copying"]
    assert copying["similarity"] == pytest.approx(1.0)
    assert copying["difference_ci95"][0] <= copying["difference"] <= copying["difference_ci95"][1]
    assert summary["after"]["gm"] - copying["gm"] == pytest.approx(copying["difference"], abs=1e-6)
    accuracy, auc = (summary["judges"][f"sentiment_{name}"] for name in ("accuracy", "auc"))
    assert auc["others"]["copying"]["value"] == 0.0  # copies keep the sentiment of their source
    for name in ("before", "after", "copying"):
        texts = Samples.from_jsonl(folder / f"{name}.jsonl")
        scores = LexiconSentiment().score(texts)
        wanted = [label == "positive" for label in texts.labels]
        expected = scores["accuracy"].mean(), functional.auc(scores["polarity"], wanted)
        for judge, value in zip((accuracy, auc), expected, strict=True):
            found = judge[name] if name in judge else judge["others"][name]["value"]
            assert found == pytest.approx(value)
    assert (folder / "samples" / "rollout" / "step=000001.jsonl").exists()
    assert "gm, after - copying" in capsys.readouterr().out
    rows = JsonLog(folder / "metrics.jsonl").read()
    for key in ("score/independent", "guard/alarm", "score/corpus/gm", "policy/kl"):
        assert curve(rows, key)[0], key


class Recorder(pl.LightningModule):
    """Records the sentences of its batches; makes one or two updates of a batch."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.updates = updates
        self.seen: list[tuple[str, ...]] = []

    def training_step(self, batch: Samples, batch_idx: int) -> None:
        self.seen.append(batch.sources)
        for _ in range(self.updates):
            self.optimizers().step()

    def validation_step(self, batch: object, batch_idx: int) -> None: ...

    def transfer_batch_to_device(self, batch: Samples, device: object, _: int) -> Samples:
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_resumed_run_goes_on_with_the_next_sentences(
    files: dict[str, str], tmp_path: Path, updates: int
) -> None:
    def run(batches: int, ckpt_path: str | None = None) -> tuple[Recorder, str]:
        module = Recorder(updates)
        saver = ModelCheckpoint(tmp_path / "saved", save_last=True)
        limits = {"max_epochs": 1, "max_steps": batches * updates, "val_check_interval": 2}
        trainer = quiet_trainer(enable_checkpointing=True, callbacks=[saver], **limits)
        data = TransferData(Sentences(files, TEMPLATE, 4), batch_size=3, steps=8)
        trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=True)
        return module, saver.last_model_path

    uncut, _ = run(8)
    assert len(set(uncut.seen)) == len(uncut.seen) == 8
    cut, path = run(4)
    resumed, _ = run(8, path)
    assert cut.seen + resumed.seen == uncut.seen
