"""Scales of word vectors as Sim, and their agreement with raters of content.

    python benchmarks/studies/word_vectors.py

Prints a row per model: the mean cosine with the source of the 3,200 outputs of eight systems, of
the human references, of the sources in another order, and of one constant sentence; and Spearman's
ρ of the outputs' cosines with the rated content (Li et al. 2018, Yelp).
"""

from __future__ import annotations

import random
from pathlib import Path

from scipy.stats import spearmanr

from ctrlreward import Similarity
from ctrlreward.recipes.papers.meta_eval.rated_files import read_li2018
from ctrlreward.recipes.scoring_models.word_vectors import sentence_vectors
from ctrlreward.recipes.text_files import read_lines

CORPUS = [f"yelp-shen/sentiment.test.{style}" for style in (0, 1)]
TEST = [f"li2018/{name}.{style}" for name in ("sentiment.test", "reference") for style in (0, 1)]
CONSTANT = "the food was great ."


def main() -> None:
    rated = read_li2018(Path("li2018/human_ratings_yelp.csv"))
    pairs = [line.split("\t") for line in read_lines(TEST[2:])]
    sources, references = zip(*pairs, strict=True)
    others = random.Random(0).sample(sources, len(sources))
    models = {
        "GloVe, equal weights": "glove-6b-50d",
        "GloVe, idf (the paper's)": sentence_vectors(CORPUS, TEST, centred=False),
        "GloVe, idf, centred": sentence_vectors(CORPUS, TEST),
        "MiniLM": "minilm-l6",
    }
    for name, model in models.items():
        similarity = Similarity(model)
        outputs = similarity(rated.samples.texts, sources=rated.samples.sources)["similarity"]
        means = [outputs.mean()]
        for texts in (references, others, [CONSTANT] * len(sources)):
            means.append(similarity(texts, sources=sources)["similarity"].mean())
        rho = spearmanr(outputs, rated.ratings["topic"]).statistic
        print(f"| {name} | " + " | ".join(f"{mean:.2f}" for mean in means) + f" | {rho:.3f} |")


if __name__ == "__main__":
    main()
