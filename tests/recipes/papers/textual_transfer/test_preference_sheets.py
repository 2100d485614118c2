"""Sheets for pairwise comparisons, filled by a rule and read back, against plain loops."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlreward.recipes.papers.textual_transfer.preferences import main, win_rates

QUESTIONS = ("transfer", "semantics", "fluency")
SOURCES = [f"the {thing} was cold ." for thing in ("soup", "room", "bus", "play", "tea", "inn")]


@pytest.fixture
def systems(tmp_path: Path) -> dict[str, str]:
    """Three systems whose outputs have their number of marks, in another order each."""
    files = {}
    for number, name in enumerate(("m0", "m2", "m7"), 1):
        lines = []
        for source in SOURCES[number:] + SOURCES[:number]:
            text = f"{source[:-1]}{'!' * number}"
            lines.append({"source": source, "label": "sweet", "text": text})
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        files[name] = str(path)
    return files


def write(systems: dict[str, str], folder: Path, *options: str) -> None:
    named = [part for name, file in systems.items() for part in ("--system", f"{name}={file}")]
    main(["sheet", *named, "--output", str(folder), "--count", "4", *options])


def read(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def save(rows: list[dict[str, str]], path: Path, encoding: str = "utf-8") -> Path:
    with open(path, "w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def fill(folder: Path, name: str, seed: int) -> Path:
    """Answer at random, in different case, and leave some cells empty."""
    answers = random.Random(seed)
    rows = read(folder / "sheet.csv")
    for row in rows:
        for question in QUESTIONS:
            row[question] = answers.choice(["A", "b", "A ", "tie", ""])
    return save(rows, folder / name)


def test_the_sheet_hides_which_system_wrote_what(systems: dict[str, str], tmp_path: Path) -> None:
    write(systems, tmp_path / "one")
    text = (tmp_path / "one" / "sheet.csv").read_text()
    assert not any(name in text for name in systems)
    sheet, key = read(tmp_path / "one" / "sheet.csv"), read(tmp_path / "one" / "key.csv")
    assert list(sheet[0]) == ["item", "source", "target", "A", "B", *QUESTIONS]
    marks = {"m0": 1, "m2": 2, "m7": 3}
    for shown, hidden in zip(sheet, key, strict=True):
        assert shown["item"] == hidden["item"]
        assert {hidden["A"], hidden["B"]} == {hidden["first"], hidden["second"]}
        for side in ("A", "B"):
            assert shown[side] == f"{shown['source'][:-1]}{'!' * marks[hidden[side]]}"
        assert shown["target"] == "sweet"
        assert not any(shown[question] for question in QUESTIONS)
    # Four sentences a pair, each system of it on either side in half of them, pairs mixed.
    pairs = [("m0", "m2"), ("m0", "m7"), ("m2", "m7")]
    counts = Counter((row["first"], row["second"], row["A"] == row["first"]) for row in key)
    assert counts == {(*pair, side): 2 for pair in pairs for side in (True, False)}
    assert [(row["first"], row["second"]) for row in key] != sorted(pairs * 4)


def test_another_sheet_does_not_fit(systems: dict[str, str], tmp_path: Path) -> None:
    for folder, seed in (("one", "0"), ("other", "1")):
        write(systems, tmp_path / folder, "--seed", seed)
    filled = fill(tmp_path / "other", "filled.csv", 0)
    with pytest.raises(ValueError, match=r"filled\.csv:2"):
        win_rates(tmp_path / "one" / "key.csv", [filled])


def brute_force(key: Path, sheets: list[Path], pair: tuple[str, str], question: str) -> Any:
    """Shares and intervals with one list of answers per row, and whole lists drawn."""
    rows = {row["item"]: row for row in read(key)}
    answers: dict[str, list[str]] = {}
    for sheet in sheets:
        for row in read(sheet):
            sides, answer = rows[row["item"]], row[question].strip().lower()
            if (sides["first"], sides["second"]) == pair and answer:
                winner = "" if answer == "tie" else sides[answer.upper()]
                answers.setdefault(row["item"], []).append(winner)

    def shares(drawn: list[str]) -> list[float]:
        first, second, tie = (drawn.count(name) / len(drawn) for name in (*pair, ""))
        return [first, second, tie, first - second]

    lists = list(answers.values())
    draws = np.random.default_rng(3).multinomial(len(lists), [1 / len(lists)] * len(lists), 200)
    samples = []
    for draw in draws:
        drawn = [a for times, each in zip(draw, lists, strict=True) for a in each * times]
        samples.append(shares(drawn))
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    everything = [answer for each in lists for answer in each]
    return len(everything), list(zip(shares(everything), low, high, strict=True))


def test_rates_of_two_people_equal_plain_loops(systems: dict[str, str], tmp_path: Path) -> None:
    write(systems, tmp_path)
    sheets = [fill(tmp_path, f"{person}.csv", person) for person in (1, 2)]
    key = tmp_path / "key.csv"
    found = win_rates(key, sheets, resamples=200, seed=3)
    pairs = combinations(systems, 2)
    assert set(found) == {(*pair, question) for pair in pairs for question in QUESTIONS}
    for (*pair, question), (judgements, rates) in found.items():
        n, expected = brute_force(key, sheets, (pair[0], pair[1]), question)
        assert judgements == n
        for estimate, (value, low, high) in zip(rates.values(), expected, strict=True):
            assert estimate.value == pytest.approx(value)
            ends = (low, high) if low < high else (-np.inf, np.inf)
            assert (estimate.low, estimate.high) == pytest.approx(ends)


def test_the_command_prints_rates_beside_the_papers(
    systems: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write({name: systems[name] for name in ("m0", "m2")}, tmp_path)
    rows, key = read(tmp_path / "sheet.csv"), {r["item"]: r for r in read(tmp_path / "key.csv")}
    for row in rows:  # m2 has the style, all mean the same, fluency is not judged
        row["transfer"] = "A" if key[row["item"]]["A"] == "m2" else "B"
        row["semantics"] = "Tie"
    save(rows, tmp_path / "filled.csv", "utf-8-sig")
    capsys.readouterr()
    files = [str(tmp_path / name) for name in ("filled.csv", "key.csv", "rates.json")]
    main(["rates", files[0], "--key", files[1], "--json", files[2]])
    printed = " ".join(capsys.readouterr().out.split())
    for shown in ("9.0 / 6.0 / 85.1", "1.5 / 25.4 / 73.1 / -0.05"):  # of M0 and M2 on Yelp
        assert all(word in printed for word in shown.split())
    transfer, semantics, fluency = json.loads(Path(files[2]).read_text())
    assert (transfer["second_better"]["value"], transfer["difference"]["value"]) == (1.0, -1.0)
    assert semantics["tie"]["value"] == 1.0
    assert fluency["judgements"] == 0
    assert fluency["tie"] == {"value": None, "low": None, "high": None}
