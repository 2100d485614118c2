from __future__ import annotations

import random
from pathlib import Path

import pytest

from ctrlreward.recipes.papers.textual_transfer.paraphrases import paraphrase_pairs, rewrite
from ctrlreward.recipes.style_transfer.pseudo_pairs import word_log_odds

PAIRS = [
    ("We didn't wait.", "nobody made us wait ."),
    ("the soup", "the soup was warm ."),  # one contains the other
    ("it rained .", "It rained ."),
    ("rain fell .", "it was a wet day ."),
    ("he left", "he went away"),
]
KEPT = [("we did n't wait .", PAIRS[0][1]), PAIRS[3], PAIRS[4]]


def test_pairs_of_which_one_contains_the_other_are_left_out(tmp_path: Path) -> None:
    scores = ["", "\t0.71", "", "", ""]
    lines = ["\t".join(pair) + score for pair, score in zip(PAIRS, scores, strict=True)]
    (tmp_path / "pairs").write_text("\n".join([*lines, "", ""]))
    assert sorted(paraphrase_pairs(str(tmp_path / "pairs"))) == sorted(KEPT)


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("they did n't call and i am not going back .",
         "they did not call and i 'm not going back ."),
        ("it ca n't be a nice , old house .", "it can not be a pleasant , old house ."),
        ("an awesome view at the happy hour .", "an amazing view at the happy hour ."),
        ("the soup was cold , and the waitress laughed !",
         "the server laughed , and the soup was cold !"),
        ("the soup was cold and it was late .", "the soup was cold and it was late ."),
    ],
)  # fmt: skip
def test_rules(text: str, rewritten: str) -> None:
    assert rewrite(text, random.Random(0)) == rewritten


def test_the_stand_in_of_real_sentences(data_dir: Path) -> None:
    files = [data_dir / "yelp_shen" / f"sentiment.test.{style}" for style in (0, 1)]
    corpora = [file.read_text("utf-8").splitlines()[:5000] for file in files]
    pairs = paraphrase_pairs(None, *corpora)
    assert len(pairs) == 2000  # a fifth
    texts = {text for corpus in corpora for text in corpus}
    assert all(u in texts and u not in v and v not in u for u, v in pairs)
    same = [len(set(u.split()) & set(v.split())) / len(set(u.split())) for u, v in pairs]
    assert 0.7 < sum(same) / len(same) < 0.9  # most words stay, those of the content among them
    assert pairs == paraphrase_pairs(None, *corpora)
    assert len(paraphrase_pairs(None, *corpora, count=50)) == 50
    odds = word_log_odds(*corpora)

    def one_sided(text: str) -> float:
        return sum(abs(odds.get(word, 0.0)) for word in text.split()) / len(text.split())

    rewritten = [rewrite(text, random.Random(0)) for corpus in corpora for text in corpus]
    both = [sum(map(one_sided, side)) / len(side) for side in ([v for _, v in pairs], rewritten)]
    assert both[0] < 0.75 * both[1]  # few words of one style
