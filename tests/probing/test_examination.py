"""Planted weaknesses are found, and what is sound is not blamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ctrlreward import FunctionScorer, Reward, Samples
from ctrlreward.cli import main
from ctrlreward.models.passages import passages
from ctrlreward.probing.examination import examine

PASSAGES = passages()[::2]
SAMPLES = Samples(
    [each.text for each in PASSAGES],
    prefixes=[each.prefix for each in PASSAGES],
    sources=[f"{each.prefix} {each.remainder.split('.')[0]}." for each in PASSAGES],
    labels=[each.topic for each in PASSAGES],
)


def verdicts(reward: Reward) -> dict[str, str]:
    return {finding.probe: finding.verdict for finding in examine(reward, SAMPLES).findings}


def length(texts: Sequence[str]) -> list[float]:
    return [len(text.split()) for text in texts]


def keywords(texts: Sequence[str]) -> list[float]:
    return [sum(text.count(word) for word in ("excellent", "wonderful")) for text in texts]


def overlap(completions: Sequence[str], sources: Sequence[str]) -> list[float]:
    """Share of a completion's words that are in the source: copying is perfect."""
    pairs = zip(completions, sources, strict=True)
    return [
        np.mean([word in source.split() for word in text.split()]) if text.split() else np.nan
        for text, source in pairs
    ]


def label_word(texts: Sequence[str], labels: Sequence[str]) -> list[float]:
    return [float(label in text) for text, label in zip(texts, labels, strict=True)]


def short(texts: Sequence[str]) -> list[float]:
    return [-len(text) for text in texts]


@pytest.mark.parametrize(
    ("weakness", "found"),
    [
        (length, {"padded to twice the length", "sentences doubled", "instruction to a judge"}),
        (keywords, {"generic praise"}),
        (overlap, {"prompt or source copied"}),
        (label_word, {"label repeated"}),
        (short, {"empty", "cut in half"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_weakness_is_found(weakness: Callable[..., list[float]], found: set[str]) -> None:
    by_probe = verdicts(Reward({"planted": weakness}))
    assert found <= {probe for probe, verdict in by_probe.items() if verdict == "gamed"}


def test_what_is_not_gamed() -> None:
    known = set(SAMPLES.texts)

    def exact(texts: Sequence[str]) -> list[float]:
        return [float(text in known) for text in texts]

    assert set(verdicts(Reward({"exact": exact})).values()) == {"ok"}
    found = examine(Reward({"constant": lambda texts: [1.0] * len(texts)}), SAMPLES)
    assert {finding.verdict for finding in found.findings} == {"blind"}
    assert all(finding.wins == 0 for finding in found.findings)
    assert found.gamed == []


def test_a_failed_text_does_not_win() -> None:
    def only_long(texts: Sequence[str]) -> list[float | None]:
        return [len(text) if len(text.split()) > 5 else None for text in texts]

    (empty,) = (
        f for f in examine(Reward({"a": only_long}), SAMPLES).findings if f.probe == "empty"
    )
    assert (empty.verdict, empty.failed, empty.wins) == ("ok", len(SAMPLES), 0)


def test_a_component_that_is_better_when_lower_gains_when_it_falls() -> None:
    lower = FunctionScorer(length, higher_is_better=False)
    found = examine(Reward({"words": (lower, -1.0)}), SAMPLES)
    (cut,) = (f for f in found.findings if f.probe == "cut in half")
    assert cut.change["words"].value == pytest.approx(cut.change["total"].value)
    assert cut.verdict == "gamed"
    assert found.length_correlation["words"] == pytest.approx(-1)


def run(*arguments: str) -> int:
    try:
        main(["probe", *arguments])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_the_command_probes_a_function_of_a_file(tmp_path, capsys) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text(
        "def words(completions, **kwargs):\n    return [len(c.split()) for c in completions]\n"
        "def ends(texts):\n    return [1.0 if t.endswith('.') else 0.0 for t in texts]\n"
    )
    texts = tmp_path / "texts.jsonl"
    rows = [
        {"text": f"The {noun} {verb}.", "prompt": f"The {noun}", "group": noun}
        for noun in ("old dog", "new house", "small bridge", "red car")
        for verb in ("stands on the hill", "was sold last year to a friend")
    ]
    texts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(f"{rewards}:words", "--texts", str(texts), "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert "padded to twice the length" in result["gamed"]
    assert "capitals" in result["blind"]
    assert run(f"{rewards}:ends") == 0  # the built-in passages
    assert "gamed by: none of the probes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reward"], "'reward'"),
        (["absent.py:f"], "absent.py"),
        (["json:dump_all"], "dump_all"),
    ],
)
def test_wrong_arguments(arguments, message, capsys) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_too_few_texts() -> None:
    with pytest.raises(ValueError, match="4 texts"):
        examine(Reward({"length": length}), SAMPLES[:3])
