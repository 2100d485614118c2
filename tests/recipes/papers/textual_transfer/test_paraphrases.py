from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ctrlreward.recipes.papers.textual_transfer.paraphrases import paraphrase_pairs, rewrite

# A file of pairs

PAIRS = [
    ("We didn't wait.", "nobody made us wait ."),
    ("the soup", "the soup was warm ."),  # one contains the other
    ("it rained .", "It rained ."),
    ("rain fell .", "it was a wet day ."),
    ("he left", "he went away"),
]
KEPT = [("we did n't wait .", PAIRS[0][1]), PAIRS[3], PAIRS[4]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    scores = ["", "\t0.71", "", "", ""]
    lines = ["\t".join(pair) + score for pair, score in zip(PAIRS, scores, strict=True)]
    (tmp_path / "pairs").write_text("\n".join([*lines, "", ""]))
    return tmp_path / "pairs"


def test_pairs_of_which_one_contains_the_other_are_left_out(file: Path) -> None:
    assert sorted(paraphrase_pairs(str(file))) == sorted(KEPT)


# The stand-in


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("they did n't call and i am not going back .",
         "they did not call and i 'm not going back ."),
        ("do n't you think it 's been closed ?", "do n't you think it 's been closed ?"),
        ("it 's a shame that is what it is .", "it is a shame that 's what it is ."),
        ("not only cheap , but good .", "not only cheap , yet good ."),
        ("it ca n't be a nice , old house .", "it can not be a pleasant , old house ."),
        ("an awesome view at the happy hour .", "an amazing view at the happy hour ."),
        ("a great view , a great deal .", "an excellent view , an excellent deal ."),
        ("i 'm happy with it .", "i am pleased with it ."),
        ("this place had been busy", "this spot had been busy"),
        ("the soup was cold , and the waitress laughed !",
         "the server laughed , and the soup was cold !"),
        ("the soup was cold and it was late .", "the soup was cold and it was late ."),
        ("greatest places", "greatest places"),
        ("", ""),
    ],
)  # fmt: skip
def test_rules(text: str, rewritten: str) -> None:
    assert rewrite(text, random.Random(0)) == rewritten


@pytest.fixture(scope="module")
def corpora(data_dir: Path) -> list[list[str]]:
    files = [data_dir / "yelp_shen" / f"sentiment.test.{style}" for style in (0, 1)]
    return [file.read_text("utf-8").splitlines()[:5000] for file in files]


def test_the_stand_in_of_real_sentences(corpora: list[list[str]]) -> None:
    pairs = paraphrase_pairs(None, *corpora)
    assert len(pairs) == 2000  # a fifth
    texts = {text for corpus in corpora for text in corpus}
    assert all(u in texts and u not in v and v not in u for u, v in pairs)
    same = [len(set(u.split()) & set(v.split())) / len(set(u.split())) for u, v in pairs]
    assert 0.7 < sum(same) / len(same) < 0.9  # most words stay, those of the content among them
    assert pairs == paraphrase_pairs(None, *corpora)
    assert pairs != paraphrase_pairs(None, *corpora, seed=1)
    assert len(paraphrase_pairs(None, *corpora, count=50)) == 50


def test_the_stand_in_has_few_words_of_one_style(corpora: list[list[str]]) -> None:
    """Words that are three times as frequent in one style are rarer in v than in all sentences."""
    counts = [Counter(word for text in corpus for word in text.split()) for corpus in corpora]

    def share(texts: list[str]) -> float:
        words = [word for text in texts for word in text.split()]
        rates = [(counts[0][word] + 1) / (counts[1][word] + 1) for word in words]
        return sum(not 1 / 3 < rate < 3 for rate in rates) / len(words)

    pairs = paraphrase_pairs(None, *corpora)
    rewritten = [rewrite(text, random.Random(0)) for corpus in corpora for text in corpus]
    assert share([v for _, v in pairs]) < 0.75 * share(rewritten)
