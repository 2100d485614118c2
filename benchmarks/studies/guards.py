"""Drift of the demo's policy under two guards of its reward, over 40 steps.

    python benchmarks/studies/guards.py FOLDER [--steps 40] [--seeds 0 1] [--draw PNG]

Trains the demo's configuration with the floor of versions 0.1 and 0.2 (0.1 per nat of mean
log-likelihood below -3.5) and with the two-sided cost of the configuration. Each validation is also
judged by a word list that no part of the run knows: the share of pairs of a text wanted positive
and one wanted negative that it puts in the right order (AUC). Writes FOLDER/<guard>-<seed>.jsonl,
the metrics of the run with `judge/sentiment_auc`, and prints the validations. A run that FOLDER has
already is not repeated. A run takes about five minutes on two cores with bfloat16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # of reward_step

import numpy as np
import yaml
from reward_step import CONFIG

from ctrlreward import LexiconSentiment
from ctrlreward.functional.ranking import auc
from ctrlreward.plots.curves import curve
from ctrlreward.plots.style import FIRST, SECOND, finish_panel, new_figure
from ctrlreward.scorers.records import read_scored_samples

GUARDS = {
    "floor": {"fluency": 0.1, "likelihood": [-3.5, np.inf]},
    "range": {},  # as configured
}
JUDGE = "judge/sentiment_auc"
SHOWN = {
    "score/attribute_relevance": "attribute relevance",
    JUDGE: "AUC of a lexicon",
    "score/distinct_2": "Distinct-2",
    "score/perplexity": "perplexity",
    "policy/kl": "KL, nats per token",
}


def train(guard: str, seed: int, steps: int, run: Path) -> None:
    """Train in the folder `run`; nothing stops the run early, and there is no report."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["seed_everything"] = seed
    config["model"]["init_args"]["reward"]["init_args"] |= GUARDS[guard]
    trainer = config["trainer"]
    (logger,) = trainer["logger"]
    logger["init_args"]["folder"] = str(run)
    (scorer,) = (c for c in trainer["callbacks"] if c["class_path"].endswith("held_out_scorer"))
    changes = {"logger": logger, "callbacks": [scorer], "max_steps": steps, "max_time": None}
    trainer |= {**changes, "default_root_dir": str(run), "enable_checkpointing": False}
    given = run.with_suffix(".yaml")
    given.parent.mkdir(parents=True, exist_ok=True)
    given.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "ctrlreward", "train", "--config", str(given)]
    subprocess.run(command, check=True)


def judged(run: Path) -> list[dict[str, float]]:
    """Return the metrics of a run, with the judge's AUC at each validation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    judge = LexiconSentiment(aspects="polarity")
    for path in sorted((run / "samples" / "score").glob("step=*.jsonl")):
        texts, _ = read_scored_samples(path)
        wanted = [label == "positive" for label in texts.require("labels", "guards.py")]
        value = auc(judge.score(texts)["polarity"], wanted)
        rows.append({"step": int(path.stem.removeprefix("step=")), JUDGE: value})
    return sorted(rows, key=lambda row: row["step"])


def draw(runs: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw a panel per metric, with a colour per guard and a line per seed."""
    figure = new_figure(4.2 * len(SHOWN), 3.2)
    for panel, (name, title) in zip(figure.subplots(1, len(SHOWN)), SHOWN.items(), strict=True):
        for run, rows in runs.items():
            guard, _, seed = run.partition("-")
            label = {"floor": "floor alone", "range": "both bounds"}[guard]
            panel.plot(
                *curve(rows, name),
                color=FIRST if guard == "range" else SECOND,
                linestyle="-" if seed == "0" else "--",
                label=f"{label}, seed {seed}",
            )
        finish_panel(panel, title, "step", legend=name == "policy/kl")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--draw", type=Path, help="PNG to draw the curves to")
    options = parser.parse_args()
    runs = {}
    for guard in GUARDS:
        for seed in options.seeds:
            name = f"{guard}-{seed}"
            kept = options.folder / f"{name}.jsonl"
            if not kept.exists():
                train(guard, seed, options.steps, options.folder.resolve() / name)
                rows = judged(options.folder / name)
                kept.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            runs[name] = [json.loads(line) for line in kept.read_text().splitlines()]
    print(f"{'run':10}{'step':>6}" + "".join(f"{title:>22}" for title in SHOWN.values()))
    for name, rows in runs.items():
        curves = {key: dict(zip(*curve(rows, key), strict=True)) for key in SHOWN}
        for step in curves[JUDGE]:
            print(f"{name:10}{step:6}" + "".join(f"{c[step]:22.3f}" for c in curves.values()))
    if options.draw:
        draw(runs, options.draw)


if __name__ == "__main__":
    main()
