"""CTC by layer, by word and by direction equals ctc_score 0.1.3 with tiny models built here."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_aligners import bert, head, roberta, save_tokenizer

from ctrlreward.models.aligner import EmbeddingAligner, RegressionAligner, TokenAligner
from ctrlreward.models.encoder import Encoder
from ctrlreward.recipes.papers.ctc.convert_checkpoint import convert
from ctrlreward.samples import Samples
from ctrlreward.scorers.alignment import Alignment

FOLDER = Path(__file__).parent
TEXTS: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "ctc_texts.json").read_text("utf-8"))
GOLDEN: dict[str, Any] = json.loads((FOLDER / "ctc_tiny.json").read_text("utf-8"))
PAIRS = [(row["output"].lower(), row["source"].lower()) for row in TEXTS["transfers"]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of the encoders, and of aligners that were converted from checkpoints."""
    root = tmp_path_factory.mktemp("tiny")
    for family, model in (("bert", bert()), ("roberta", roberta())):
        model.save_pretrained(root / family)
        save_tokenizer(root / family, family)
    for seed in (0, 1):
        for kind, encoder, parts in (
            ("d", "roberta", {"_roberta": roberta(seed), "_classifier": head(2, seed)}),
            ("r", "bert", {"bert": bert(seed), "dense": head(1, seed)}),
        ):
            weights = torch.nn.ModuleDict(parts).state_dict()
            torch.save(dict(weights), root / "checkpoint")
            convert(str(root / "checkpoint"), str(root / encoder), str(root / f"{kind}{seed}"))
    return {path.name: str(path) for path in root.iterdir() if path.is_dir()}


def test_released_texts_are_read_in_lower_case(folders: dict[str, str]) -> None:
    upper, lower = TokenAligner(folders["d0"]).align(
        [("The “Soup” isn’t cold", "SOUP"), ('the "soup" isn\'t cold', "soup")]
    )
    assert upper == (lower.spans, pytest.approx(lower.values))


def test_other_pickles_are_refused(folders: dict[str, str], tmp_path: Path) -> None:
    new = str(tmp_path / "new")
    torch.save({"_classifier.weight": torch.zeros(2, 16)}, tmp_path / "part")
    with pytest.raises(ValueError, match=r"roberta\.em"):
        convert(str(tmp_path / "part"), folders["roberta"], new)
    torch.save({"_classifier.weight": FOLDER}, tmp_path / "code")
    with pytest.raises(pickle.UnpicklingError):
        convert(str(tmp_path / "code"), folders["roberta"], new)
    assert not Path(new).exists()


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_embeddings_of_a_layer(folders: dict[str, str], layer: int) -> None:
    found = EmbeddingAligner(Encoder(folders["bert"], layer=layer)).align(PAIRS)
    for alignment, expected in zip(found, GOLDEN["embedding"][str(layer)], strict=True):
        np.testing.assert_allclose(alignment.values, expected, rtol=0, atol=1e-5)
    means = {layer: np.mean(values[0]) for layer, values in GOLDEN["embedding"].items()}
    assert np.ptp([*means.values()]) > 1e-3


def test_the_scorer_takes_the_layer_too(folders: dict[str, str]) -> None:
    texts, sources = zip(*PAIRS, strict=True)
    scorer = Alignment(folders["bert"], "consistency", layer=2)
    expected = [np.mean(values) for values in GOLDEN["embedding"]["2"]]
    found = scorer.score(texts, sources=sources)["consistency"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_words_of_d(folders: dict[str, str]) -> None:
    aligner = TokenAligner(folders["d0"])
    found = list(aligner.align(PAIRS))
    for (a, _), alignment, words, values in zip(
        PAIRS, found, GOLDEN["words"], GOLDEN["discriminative"], strict=True
    ):
        assert [a[start:end] for start, end in alignment.spans] == words
        np.testing.assert_allclose(alignment.values, values, rtol=0, atol=1e-5)
    assert np.std([value for values in GOLDEN["discriminative"] for value in values]) > 0.05


def test_whole_texts_of_r(folders: dict[str, str]) -> None:
    found = [float(a.values[0]) for a in RegressionAligner(folders["r0"]).align(PAIRS)]
    np.testing.assert_allclose(found, GOLDEN["regression"], rtol=0, atol=1e-5)


def test_dialogs_sum_over_words(folders: dict[str, str], data_dir: Path) -> None:
    """With NLTK's stop words; a word with its comma is none of them."""
    rows = [{name: text.lower() for name, text in row.items()} for row in TEXTS["dialogs"]]
    aspects, stop_words = ["engagingness", "groundedness"], data_dir / "stopwords_english.txt"
    scorer = Alignment(folders["d0"], aspects, "discriminative", stop_words=stop_words)
    texts, facts, histories = ([row[k] for row in rows] for k in ("response", "fact", "history"))
    result = scorer.score(texts, contexts=facts, histories=histories)
    for name, values in result.items():
        expected = [row[name] for row in GOLDEN["dialogs"]]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["discriminative", "regression"])
def test_relevance_has_an_aligner_for_each_direction_and_several_references(
    folders: dict[str, str], method: Any
) -> None:
    kind = method[0]
    models = {"relevance_output": folders[f"{kind}0"], "relevance_reference": folders[f"{kind}1"]}
    rows = TEXTS["summaries"]
    samples = Samples(
        [row["summary"].lower() for row in rows],
        sources=[row["document"].lower() for row in rows],
        references=[[text.lower() for text in row["references"]] for row in rows],
    )
    scorer = Alignment(models, "relevance", method)
    result = scorer.score(samples)
    np.testing.assert_allclose(result["relevance"], GOLDEN[f"relevance_{method}"], atol=1e-5)
    alone = [
        scorer.score(samples, references=[row[i] for row in samples.references or ()])
        for i in range(2)
    ]
    means = np.mean([scores["relevance_reference"] for scores in alone], axis=0)
    np.testing.assert_allclose(result["relevance_reference"], means, atol=1e-12)
    explained = scorer.explain(samples)[1]
    names = ("relevance_reference[0]", "relevance_reference[1]", "relevance_output")
    assert tuple(explained) == names
