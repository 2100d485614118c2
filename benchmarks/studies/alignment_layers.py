"""Agreement of CTC's embedding alignment with people, by the layer of the encoder.

    python benchmarks/studies/alignment_layers.py [--model minilm-l6] [--resamples 1000]

Prints Spearman's correlations at sample level. A default is chosen on qags_xsum and persona_chat:
the last layer, unless the mean over the two files of another is higher by an interval without 0
(paired bootstrap over documents and dialogs). li2018 tests the choice. Needs the data folder
(CTRLREWARD_DATA).
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # of side_by_side

import numpy as np
from scipy.stats import rankdata
from side_by_side import DATA

from ctrlreward import Alignment
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated, read_ctc, read_li2018
from ctrlreward.weights.loading import load_config

# Aspect and rating, of one file at a time.
XSUM = {"consistency": "consistency"}
PERSONA = {"engagingness": "engaging", "groundedness": "uses_knowledge"}
LI2018 = {"preservation": "topic"}


def correlations(scores: np.ndarray, file: Rated, rating: str, draws: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation on all rows, and on the rows of each draw of clusters."""
    _, members = np.unique(file.clusters, return_inverse=True)
    order = np.argsort(members, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(members))[:-1])
    found = []
    for chosen in [np.arange(len(rows)), *(draw % len(rows) for draw in draws[:, : len(rows)])]:
        taken = np.concatenate([rows[i] for i in chosen])
        ranks = [rankdata(values[taken]) for values in (scores, file.ratings[rating])]
        found.append(np.corrcoef(*ranks)[0, 1])
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm-l6", help="encoder")
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    logging.getLogger("ctrlreward").setLevel(logging.ERROR)  # long documents
    files = [
        (read_ctc(DATA / "ctc" / "qags_xsum.json"), XSUM),
        (read_ctc(DATA / "ctc" / "persona_chat.json"), PERSONA),
        (read_li2018(DATA / "li2018" / "human_ratings_yelp.csv"), LI2018),
    ]
    # As many random numbers as there are rows; a file takes those that it needs, modulo clusters.
    draws = np.random.default_rng(0).integers(0, 2**31, (options.resamples, 3200))
    print("layer   consistency  engagingness  groundedness   preservation", end="")
    print("   mean of two files, less the last layer's")
    layers: list[list[np.ndarray]] = []
    last = load_config(options.model).num_hidden_layers
    for layer in range(last, -1, -1):
        found = []
        for file, aspects in files:
            words = DATA / "stopwords_english.txt"
            scorer = Alignment(options.model, list(aspects), stop_words=words, layer=layer)
            scores = scorer.score(file.samples)
            count = 0 if aspects is LI2018 else options.resamples
            found += [
                correlations(scores[aspect], file, rating, draws[:count])
                for aspect, rating in aspects.items()
            ]
        layers.append(found)
        xsum, engaging, grounded, preserved = found
        mean = (xsum + (engaging + grounded) / 2) / 2
        top = layers[0]
        gain = mean - (top[0] + (top[1] + top[2]) / 2) / 2
        low, high = np.quantile(gain[1:], [0.025, 0.975])
        print(
            f"{layer:5}   {xsum[0]:11.3f}  {engaging[0]:12.3f}  {grounded[0]:12.3f}   "
            f"{preserved[0]:12.3f}   {mean[0]:.3f}, {gain[0]:+.3f} ({low:+.3f} to {high:+.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
