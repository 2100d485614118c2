"""DPO in TRL on pairs of `write_pairs`: the margin of the chosen completions rises."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ctrlreward import Samples
from ctrlreward.preferences import write_pairs
from ctrlreward.recipes.controlled_generation import dpo


def test_ten_steps_raise_the_margin(
    tiny_llama: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of pairs of random completions, chosen by the letter a."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    prompts = ["".join(draw.sample("bcdef", 3)) for _ in range(24)]
    prefixes = [prompt for prompt in dict.fromkeys(prompts) for _ in range(4)]
    texts = [prefix + "".join(draw.choices("abcdef", k=5)) for prefix in prefixes]
    samples = Samples(texts, prefixes=prefixes)
    totals = np.array([float(text.count("a")) for text in samples.completions])
    write_pairs(tmp_path / "pairs.jsonl", samples, totals)

    given = ["--pairs", "pairs.jsonl", "--model", tiny_llama("abcdef"), "--use_cpu"]
    longer = ["--max_steps", "10", "--learning_rate", "0.02"]
    dpo.main([*given, "--output_dir", "run", *longer])
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["before"]["margin"] == pytest.approx(0, abs=1e-6)  # the adapter is 0
    assert summary["after"]["margin"] > 0.01
    assert summary["after"]["accuracy"] > 0.5
    assert Path("run/adapter_model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert f"margin {summary['after']['margin']:+.4f}" in printed
    assert printed.count("'rewards/margins'") == 10  # logged by TRL, a step a line

    dpo.main([*given, "--output_dir", "smoke", "--smoke"])
    summary = json.loads(Path("smoke/summary.json").read_text())
    assert summary["pairs"]["training"] == 8
    assert capsys.readouterr().out.count("'rewards/margins'") == 2
    with pytest.raises(SystemExit):
        dpo.main(["--pairs", "absent.jsonl", "--output_dir", "smoke"])
    assert "absent.jsonl" in capsys.readouterr().err


def test_prompts_are_held_out_whole() -> None:
    rows = [{"prompt": f"p{i // 3}", "chosen": "a", "rejected": "b"} for i in range(30)]
    training, held_out = dpo.split_pairs(rows, 0.2, 0, "pairs.jsonl")
    assert (len(training), len(held_out)) == (24, 6)
    assert not {row["prompt"] for row in training} & {row["prompt"] for row in held_out}
    chats = [{"prompt": [{"role": "user", "content": str(i)}]} for i in range(2)]
    assert [*map(len, dpo.split_pairs(chats, 0.5, 0, "pairs.jsonl"))] == [1, 1]
