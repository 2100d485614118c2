from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctrlreward.recipes.papers.textual_transfer.batches import TransferSentences
from ctrlreward.recipes.papers.textual_transfer.style_models import (
    StyleLanguageModel,
    StyleModels,
    load_style_model,
)
from ctrlreward.recipes.papers.textual_transfer.vocabulary import EOS, GO, PAD

ROWS = [[4, 5, 6], [7], [5, 5, 8, 4, 6]]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model() -> StyleLanguageModel:
    torch.manual_seed(0)
    return StyleLanguageModel(9, 4, 6, 0.5).eval()


def gru_log_probabilities(model: StyleLanguageModel, inputs: list[int]) -> list[np.ndarray]:
    """Cho et al.'s (2014) gates as torch documents them, one token at a time."""
    weights = {k: v.double().numpy() for k, v in model.state_dict().items()}

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    state, rows = np.zeros(model.sizes["width"]), []
    for token in inputs:
        given = weights["cell.weight_ih_l0"] @ weights["embedding.weight"][token]
        given = np.split(given + weights["cell.bias_ih_l0"], 3)
        old = np.split(weights["cell.weight_hh_l0"] @ state + weights["cell.bias_hh_l0"], 3)
        reset, update = (sigmoid(g + o) for g, o in zip(given[:2], old[:2], strict=True))
        new = np.tanh(given[2] + reset * old[2])
        state = (1 - update) * new + update * state
        logits = weights["output.weight"] @ state + weights["output.bias"]
        rows.append(logits - np.log(np.exp(logits).sum()))
    return rows


def test_log_probabilities_are_those_of_a_plain_loop(model: StyleLanguageModel) -> None:
    longest = max(map(len, ROWS)) + 1
    inputs = torch.tensor([[GO, *row] + [PAD] * (longest - 1 - len(row)) for row in ROWS])
    with torch.no_grad():
        values = model(inputs)
    assert values.shape == (3, longest, 9)
    total, count = 0.0, 0
    for row, value in zip(ROWS, values.numpy(), strict=True):
        expected = gru_log_probabilities(model, [GO, *row])
        np.testing.assert_allclose(value[: len(row) + 1], expected, atol=1e-6)
        total -= sum(expected[i][token] for i, token in enumerate([*row, EOS]))
        count += len(row) + 1
    loss, terms = model.loss(ROWS)
    assert terms == count
    assert loss.item() == pytest.approx(total, rel=1e-6)
    assert model.perplexity(ROWS, batch_size=2) == pytest.approx(math.exp(total / count), rel=1e-6)


# The training


def data_of(
    styles: dict[str, list[str]], folder: Path, min_count: int = 1, **options: Any
) -> TransferSentences:
    for style, lines in styles.items():
        (folder / style).write_text("\n".join(lines))
    files = {style: str(folder / style) for style in styles}
    data = TransferSentences(files, min_count=min_count, **options)
    data.setup("fit")
    return data


@pytest.fixture(scope="module")
def yelp(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TransferSentences:
    styles = {}
    for style, number in {"negative": 0, "positive": 1}.items():
        lines = (data_dir / "yelp_shen" / f"sentiment.test.{number}").read_text().splitlines()
        styles[style] = lines[:2000]
    folder = tmp_path_factory.mktemp("yelp")
    return data_of(styles, folder, min_count=5, words=(1, 12), max_words=500)


SMALL: dict[str, Any] = {"embedding_size": 24, "width": 32, "dropout": 0.1, "epochs": 2}


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in model.parameters()])


def test_each_model_knows_its_style_and_is_trained_once(
    yelp: TransferSentences, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StyleModels(str(tmp_path / "models"), **SMALL)
    before = torch.get_rng_state()
    models = options.trained(yelp)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(w.requires_grad for m in models for w in m.parameters())
    for own, style in enumerate(yelp.styles):
        lines = (data_dir / "yelp_shen" / f"sentiment.dev.{own}").read_text().splitlines()[:500]
        rows = yelp.tokenizer(lines).input_ids
        own_perplexity, other = (models[i].perplexity(rows) for i in (own, 1 - own))
        assert own_perplexity < 0.8 * other
        folder = tmp_path / "models" / f"style_{own}"
        training = json.loads((folder / "config.json").read_text())["training"]
        assert training["style"] == style
        kept, held_out = training["sentences"], training["held_out_sentences"]
        assert held_out / (kept + held_out) == pytest.approx(0.05, abs=1e-3)
        assert kept + held_out == len(yelp.sentences[style])
        assert training["perplexity"] == pytest.approx(own_perplexity, rel=0.4)  # of 70 sentences
        loaded, tokenizer = load_style_model(folder)
        assert torch.equal(weights_of(loaded), weights_of(models[own]))
        assert tokenizer.get_vocab() == yelp.tokenizer.get_vocab()

    def train(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(StyleModels, "_train", train)
    again = options.trained(yelp)
    assert all(map(torch.equal, map(weights_of, again), map(weights_of, models)))


THINGS = ("soup", "room", "bus", "play", "view", "tea")
STYLES = {w: [f"the {thing} was {w} ." for thing in THINGS] for w in ("cold", "lovely")}
TINY: dict[str, Any] = {"embedding_size": 3, "width": 4, "epochs": 2, "batch_size": 2}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_model_of_something_else_or_damaged_is_trained_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = data_of(STYLES, tmp_path)
    folder = tmp_path / "models"
    first = [weights_of(model) for model in StyleModels(str(folder), **TINY).trained(data)]
    assert warnings_of(caplog) == []  # an absent model is no news

    (folder / "style_1" / "model.safetensors").write_bytes(b"cut")
    repeated = [weights_of(model) for model in StyleModels(str(folder), **TINY).trained(data)]
    assert all(map(torch.equal, first, repeated))  # a training repeats exactly
    (message,) = warnings_of(caplog)
    assert message.startswith(f"{folder / 'style_1'} does not contain a style's language model, or")

    caplog.clear()
    reseeded = StyleModels(str(folder), **TINY, seed=1).trained(data)
    assert not any(map(torch.equal, first, map(weights_of, reseeded)))
    named = [message.split(" is of other ")[0] for message in warnings_of(caplog)]
    assert named == [str(folder / f"style_{i}") for i in range(2)]

    caplog.clear()
    other = data_of({**STYLES, "lovely": STYLES["lovely"][::-1]}, tmp_path)
    assert other.tokenizer.get_vocab() == data.tokenizer.get_vocab()
    StyleModels(str(folder), **TINY, seed=1).trained(other)
    (message,) = warnings_of(caplog)
    assert message.startswith(f"{folder / 'style_1'} is of other words, sentences or options")


def test_the_best_epoch_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(STYLES, tmp_path)
    weights: list[torch.Tensor] = []
    perplexities = iter([3.0, 2.0, 2.5, 1.0] * 2)

    def perplexity(model: StyleLanguageModel, rows: object) -> float:
        weights.append(weights_of(model).detach().clone())
        return next(perplexities)

    monkeypatch.setattr(StyleLanguageModel, "perplexity", perplexity)
    options = StyleModels(str(tmp_path / "models"), **TINY | {"epochs": 3})
    model = options._model(data, 0)
    assert len(weights) == 3
    assert torch.equal(weights_of(model), weights[1])
    config = json.loads((tmp_path / "models" / "style_0" / "config.json").read_text())
    assert config["training"]["epoch"] == 2
    assert config["training"]["perplexity"] == 2.0
