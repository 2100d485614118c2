"""The answers of models that reason: what is scored, what fails, and what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctrlreward import CTRLEval, Distinct, Reward, Samples, as_samples
from ctrlreward.cli import main
from ctrlreward.completion import generate
from ctrlreward.held_out import HeldOutScorer
from ctrlreward.samples import Unfinished
from ctrlreward.scorers.records import read_scored_file

END = "</think>"

# completion of the prompt "The soup" → the text that is scored, and whether it has an answer
COMPLETIONS = {
    "<think>Hot or cold?</think>\n\nwas cold.": ("The soup was cold.", True),
    "Hot?</think> was cold.": ("The soup was cold.", True),  # the template opened the reasoning
    "a</think> b</think>, cold, was good.": ("The soup, cold, was good.", True),
    " was cold.": ("The soup was cold.", False),
    "<think>Hot or": ("The soup<think>Hot or", False),
    "<think>Hot?</think> \n": ("", False),
}


def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@pytest.mark.parametrize("unfinished", ["score", "fail", None])
def test_the_answer_is_scored(unfinished: Unfinished | None) -> None:
    prompts = Samples(["The soup"] * len(COMPLETIONS), prefixes=["The soup"] * len(COMPLETIONS))
    whole = prompts.completed([*COMPLETIONS])
    read, answered = zip(*COMPLETIONS.values(), strict=True)
    expected = [
        np.nan if unfinished == "fail" and not answer else len(text)
        for text, answer in zip(read, answered, strict=True)
    ]
    of_samples = Reward(lengths)(whole, answer_after=END, unfinished=unfinished)
    of_reward = Reward(lengths, answer_after=END, unfinished=unfinished)(whole)
    for batch in (of_samples, of_reward):
        np.testing.assert_array_equal(batch.total, expected)
        np.testing.assert_array_equal(batch.failed, np.isnan(expected))
    np.testing.assert_array_equal(Reward(lengths)(whole).total, lengths([*whole.texts]))


def test_a_reward_overrides_the_samples_and_each_sample_has_its_own() -> None:
    samples = as_samples(["a</b>cd", "a</c>d", "abc"], answer_after=["</b>", "</c>", ""])
    assert Reward(lengths)(samples).total.tolist() == [2, 1, 3]
    assert Reward(lengths, answer_after="")(samples).total.tolist() == lengths([*samples.texts])
    assert Reward(lengths)(samples[[1]]).total.tolist() == [1]
    with pytest.raises(ValueError, match="unfinished"):
        as_samples(["a"], answer_after=END, unfinished="skip")


def test_models_groups_and_explanations_read_answers(tiny_llama: Callable[[str], str]) -> None:
    plain = as_samples(["The soup was cold.", "The soup was hot."], prefixes="The soup")
    thought = plain.completed([f"Or{END} was cold.", f"<think>?{END}was hot."])
    thought = thought.replace(answer_after=END)
    scorer = CTRLEval(tiny_llama(ascii_letters + " ."), aspects=["coherence"])
    np.testing.assert_allclose(scorer.score(thought)["coherence"], scorer(plain)["coherence"])
    assert scorer.explain(thought) == scorer.explain(plain)
    assert Distinct().corpus(thought) == pytest.approx(Distinct().corpus(plain))


class Thinker:
    """A generator with a tokenizer whose template has the end of reasoning."""

    tokenizer = SimpleNamespace(chat_template="{{ message.content.split('</think>')[-1] }}")

    def complete(self, prompts: list[str]) -> list[str]:
        return [f" hm{END} was cold." if "soup" in each else " hm" for each in prompts]


# options of a scorer of held-out prompts, whether the tokenizer is known → scores of two prompts
HELD_OUT: list[tuple[dict[str, Any], bool, list[float]]] = [
    ({}, True, [18, 10]),
    ({"unfinished": "fail"}, True, [18, np.nan]),
    ({"answer_after": ""}, True, [29, 10]),
    ({}, False, [29, 10]),
    ({"answer_after": END, "unfinished": "fail"}, False, [18, np.nan]),
]


@pytest.mark.parametrize(("options", "known", "expected"), HELD_OUT)
def test_the_template_decides_unless_the_caller_does(
    options: dict[str, Any], known: bool, expected: list[float], tmp_path: Path
) -> None:
    scorer = HeldOutScorer({"length": lengths}, ["The soup", "The tea"], **options)
    thinker = Thinker()
    texts = generate(thinker if known else thinker.complete, scorer.prompts)
    assert texts.texts == (f"The soup hm{END} was cold.", "The tea hm")
    result = scorer.score_samples(texts, tmp_path / "step=1.jsonl")
    np.testing.assert_array_equal(result.scores["length"], expected)
    assert result.metrics["score/fail_rate"] == np.isnan(expected).mean()
    stored = read_scored_file(tmp_path / "step=1.jsonl").samples
    assert stored == texts  # whole, and read again as they were scored
    np.testing.assert_array_equal(Reward(lengths)(stored).total, expected)


def test_a_column_of_a_file_is_read(tmp_path: Path) -> None:
    table, scored = tmp_path / "texts.jsonl", tmp_path / "scored.jsonl"
    rows = [{"text": t, "answer_after": END, "label": "h"} for t in (f"Oh{END}the soup", "Hot")]
    rows = [row | {"unfinished": "fail"} for row in rows]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["score", str(table), str(scored), "--scorers", "fakes.Letters"])
    found = [json.loads(line) for line in scored.read_text().splitlines()]
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    assert [row["letters"] for row in found] == [1, None]
