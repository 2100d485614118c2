"""`ctrlreward meta-eval li2018`: preservation and GM on rated style transfers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.recipes.papers.ctc.ablations import ablate, print_ablations
from ctrlreward.recipes.papers.li2018.metric_validity import (
    percent,
    print_validity,
    validity_record,
)
from ctrlreward.recipes.papers.li2018.preferences import fit_gm as fit
from ctrlreward.recipes.papers.li2018.preferences import pairwise_preferences
from ctrlreward.recipes.papers.li2018.system_outputs import tokenized
from ctrlreward.recipes.papers.meta_eval.correlations import print_rows
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated, read_li2018
from ctrlreward.recipes.papers.meta_eval.rated_report import (
    Outputs,
    PublishedModels,
    report_correlations,
    score_rated,
    write_record,
)
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment, Method
from ctrlreward.scorers.base import Scored, Scores
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.model_scorer import ModelOptions
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.transfer import TransferQuality

INPUTS = ("label_probability", "similarity", "perplexity")  # of a sentence's GM


def li2018(
    data: Path,
    classifier: str | LabelProbabilities | None = None,
    model: str = "smollm2-135m",
    similarity: str = "minilm-l6",
    words: Literal["as_written", "separated"] = "as_written",
    score_end: bool = False,
    fit_gm: bool = False,
    aligner: str = "minilm-l6",
    method: Method = "embedding",
    output: Path | None = None,
    scores: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    published: PublishedModels = "best",
    log: Path | None = None,
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate preservation and GM on the rated style transfers of Li et al. (2018).

    Args:
        data: Their rated sentences, human_ratings_yelp.csv.
        classifier: Style classifier with the labels positive and negative: a local folder, a
            Hugging Face id, or a class such as the text_cnn recipe's, with its folder. Without
            one, only preservation is evaluated.
        model: Language model for the perplexity; a folder of one trained on such sentences suits
            them better than a general one.
        similarity: Model for the similarity: a sentence encoder, or word vectors.
        words: How GM's judges read texts: as they are written, or lower-cased with punctuation
            and contractions separated, as in the corpora of such judges. Half of the human
            references are not written so.
        score_end: Whether the perplexity counts the end of a sentence, as the perplexity of a
            language model of sentences does.
        fit_gm: Also fit GM's thresholds to the preferences, t2 alone and all four.
        aligner: Model for preservation: an encoder, or an aligner trained for the method.
        method: Alignment method: embedding, discriminative or regression.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap and of the search for thresholds.
        published: Figures of CTC's paper to print: best for its best model of the same method, or
            all for all in the package, with a line on those that it lacks.
        log: File of the scores so far, from which a repeated call continues.
        options: Device, dtype and token budget of the models.
    """
    if classifier is None and fit_gm:
        raise ValueError("--fit-gm needs GM. Pass a --classifier.")
    outputs = Outputs(output, scores, resamples, seed, published)
    preservation = Alignment(aligner, "preservation", method, **options)
    file = read_li2018(data)
    judge = None
    if classifier is not None:
        judge = SentenceTransfer(
            Accuracy(classifier, **options),
            Similarity(similarity, **options),
            Perplexity(model, score_end=score_end, **options),
        )
        judge.separate = words == "separated"
    components = name_components([preservation, *filter(None, [judge])], None)
    components.pop("log_likelihood", None)  # not an input of GM
    values = score_rated(file, components, outputs, log)
    kind = f"CTC {method[0].upper()}"
    record = report_correlations(file, values, components, outputs, kind)
    record["ablations"] = ablate(file, values)
    print_ablations(record["ablations"], file.file)
    if judge is None:
        write_record(record, outputs)
        return
    record["table_5"] = validity_record(file, values, record)
    print_validity(record["table_5"])
    write_record(record, outputs)
    if fit_gm:
        record["gm"] = fit_thresholds(file, values, seed)
        print_fits(record["gm"])
        write_record(record, outputs)


def fit_thresholds(rated: Rated, values: Mapping[str, Scores], seed: int) -> dict[str, Any]:
    """Fit GM's thresholds to the preferences of rated outputs, t2 alone and all four.

    A preference is a pair of outputs for the same item whose mean ratings differ.

    Args:
        rated: The rated file, with the rating `mean` and items as clusters.
        values: Scores by name, among them `INPUTS`, shape (n,); NaN where a score failed.
        seed: Seed of the search for thresholds.

    Returns:
        The number of preferences as `pairs`, the paper's agreement and, by name, thresholds,
        factor c (0 if nothing could be learned), loss and agreement with these preferences.
    """
    inputs = np.stack([values[name] for name in INPUTS], axis=1)
    ratings = np.where(np.isnan(inputs).any(axis=1), np.nan, rated.ratings["mean"])
    preferred, rejected = pairwise_preferences(ratings, rated.clusters or (), 0.0)
    pairs = inputs[preferred], inputs[rejected]
    t1, _, t3, t4 = GM_THRESHOLDS
    fits = {"t2": fit(*pairs, fixed=(t1, None, t3, t4), seed=seed), "all": fit(*pairs, seed=seed)}
    agreements = {"paper": fits["all"].default_agreement} | {
        name: each.agreement for name, each in fits.items()
    }
    return {
        "pairs": len(preferred),
        "published_agreement": PUBLISHED["gm_agreement"],
        "agreement": {name: each._asdict() for name, each in agreements.items()},
        "fits": {
            name: {"thresholds": each.thresholds, "scale": each.scale, "loss": each.loss}
            for name, each in fits.items()
        },
    }


def print_fits(record: Mapping[str, Any]) -> None:
    """Print the agreements of `fit_thresholds`."""
    thresholds = {"paper": GM_THRESHOLDS} | {
        name: each["thresholds"] for name, each in record["fits"].items()
    }
    cells = []
    for name, each in record["agreement"].items():
        numbers = ", ".join(f"{threshold:.1f}" for threshold in thresholds[name])
        cells.append([f"{name} ({numbers})", percent(each["agreed"]), percent(each["tied"])])
    title = f"GM: agreement with {record['pairs']} preferences, which thresholds were fitted to"
    print_rows(title, ("thresholds", "agreed", "ties"), cells, whole=True)
    print(f"The paper reports {record['published_agreement']:.0%} for its judges and preferences.")


class SentenceTransfer(TransferQuality):
    """Transfer quality of sentences that may be read as in tokenized corpora.

    Attributes:
        separate: Read samples as `tokenized` writes them.
    """

    separate: bool = False

    def score_samples(self, samples: Samples, names: Collection[str] | None = None) -> Scored:
        """Compute all scores, float64 of shape (n,); `gm` is NaN where an input is NaN."""
        found = super().score_samples(tokenized(samples) if self.separate else samples, names)
        accuracy, similarity, perplexity = (found.scores[name] for name in INPUTS)
        gm = adjusted_gm(accuracy, similarity, perplexity, self.thresholds)
        return found._replace(scores={**found.scores, "gm": gm})
