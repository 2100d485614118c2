"""Tables 1 to 3 and 6 and Figure 1 of Pang & Gimpel (2019), beside the paper's figures.

    python -m ctrlreward.recipes.papers.textual_transfer.tables runs/textual_transfer/m0 …/m2

reads the folders of runs, named like their models, prints the tables, and draws the trade-offs of
style, content and fluency over training. Without runs, it prints the paper's 16 rows with GM by
eq. 1. `TransferReport` tests a run at its end.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import yaml

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.completion import eval_mode
from ctrlreward.extras import import_extra
from ctrlreward.files import JsonLog, json_text, read_json, whole_file, write_whole
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.models.words import separate_words
from ctrlreward.ratings.correlations import correlate
from ctrlreward.ratings.report import markdown_table
from ctrlreward.recipes.style_transfer import ScoringModels
from ctrlreward.recipes.text_files import read_lines
from ctrlreward.samples import Samples
from ctrlreward.scorers.records import write_scored_samples

PUBLISHED: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("published_tables.yaml").read_text("utf-8")
)
"""Figures of Tables 2 to 6."""

# Figures with their digits, as the paper prints them.
FIGURES = {"accuracy": 3, "similarity": 3, "perplexity": 1, "gm": 1}
_HEADINGS = ("Acc", "Sim", "PP", "GM")

Row = Mapping[str, Any]


def read_references(references: Mapping[str, str]) -> Samples:
    """Return sentences to transfer with a human reference each, and empty texts.

    `references` maps the style of sentences to a file of `source ⇥ reference` lines; two styles,
    each the target of the other.
    """
    first, second = references
    rows = [
        (*map(str.strip, line.split("\t")), target)
        for style, target in ((first, second), (second, first))
        for line in read_lines([references[style]])
    ]
    sources, texts, labels = zip(*rows, strict=True)
    empty = [""] * len(rows)
    return Samples(empty, empty, labels=labels, sources=sources, references=texts)


def reference_bleu(samples: Samples) -> float:
    """Return BLEU-4 of texts against one reference each, 0 to 100; higher is better.

    Table 6 is by multi-bleu.perl, which splits at spaces and smooths nothing; so does sacrebleu
    with these settings. Both sides are tokenized like the corpus: Li et al.'s references are not
    (`food.`, not `food .`). The untransferred input has 31.3, in the paper 31.4.
    """
    metrics = import_extra("sacrebleu.metrics", "BLEU")
    # force: otherwise sacrebleu warns about texts that end in a separated full stop.
    bleu = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
    references = samples.require("references", "reference_bleu")
    texts, targets = (list(map(separate_words, side)) for side in (samples.texts, references))
    return float(bleu.corpus_score(texts, [targets]).score)


class TransferReport(pl.Callback):
    """Transfers the sentences of Table 6 by the selected checkpoint, after training.

    The module keeps its weights. Writes to the trainer's `default_root_dir` `transfers.jsonl`, a
    sentence a line, and `test.json`: corpus accuracy, similarity, perplexity, GM and BLEU of the
    transfers (`"selected"`, with their `step`) and of copies of the sources (`"copying"`).

    Args:
        references: See `read_references`.
        scoring_models: Models that compute the scores.
    """

    def __init__(self, references: dict[str, str], scoring_models: ScoringModels) -> None:
        super().__init__()
        self.sentences, self.quality = read_references(references), scoring_models.quality()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Raise before training if BLEU can't be computed after it."""
        import_extra("sacrebleu", "BLEU")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Transfer, score, write the files, and print the table."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        module: Any = pl_module
        keeper: Any = trainer.checkpoint_callback
        path = keeper.best_model_path or keeper.last_model_path
        checkpoint = torch.load(path, module.device, weights_only=True)
        module.load_state_dict(checkpoint["state_dict"])
        with eval_mode(module), trainer.precision_plugin.val_step_context(), torch.no_grad():
            transfers = self.sentences.replace(texts=module.complete_samples(self.sentences))
        folder = Path(trainer.default_root_dir)
        write_scored_samples(folder / "transfers.jsonl", transfers, {})
        copies = self.sentences.replace(texts=self.sentences.sources)
        report: dict[str, dict[str, Any]] = {
            name: {**self.quality.corpus(samples), "bleu": reference_bleu(samples)}
            for name, samples in (("selected", transfers), ("copying", copies))
        }
        self.quality.release()
        report["selected"]["step"] = checkpoint["global_step"]
        write_whole(folder / "test.json", json_text(report))
        rows = [[name, *cells(row), bleu(row)] for name, row in report.items()]
        print(markdown_table(["system", *_HEADINGS, "BLEU"], rows), flush=True)


@dataclass(frozen=True)
class TransferRun:
    """Validations and test report of one run.

    Attributes:
        name: Name of the folder, `m2_seed0`.
        model: Model of the paper, `M2`; "" if the name has none.
        corpus: The paper's corpus: Literature for a folder such as `literature/m2`, else Yelp.
        validations: `step` and `FIGURES` of each, in the order of their steps; the GM may be None.
        test: Content of `test.json`; empty without one.
    """

    name: str
    model: str
    corpus: str
    validations: Sequence[Row]
    test: Row

    def nearest(self, accuracy: float) -> Row:
        """Return the validation nearest to an accuracy; of equals, the best by GM."""
        return min(
            self.validations,
            key=lambda v: (round(abs(v["accuracy"] - accuracy), 9), -_gm(v)),
        )

    def best(self) -> Row:
        """Return the validation with the highest GM, the first of equals."""
        return max(self.validations, key=_gm)

    def trend(self) -> dict[str, float]:
        """Return Spearman's ρ of each figure with the step (Table 1), NaN where undefined."""
        steps, *columns = (
            np.array([v[name] for v in self.validations], dtype=np.float64)
            for name in ("step", *FIGURES)
        )
        rhos = (correlate(steps, column)["spearman"] for column in columns)
        return dict(zip(FIGURES, rhos, strict=True))


def _gm(validation: Row) -> float:
    return -1.0 if validation["gm"] is None else float(validation["gm"])


def read_run(folder: Path) -> TransferRun:
    """Read a run from the folder of its `HistoryLogger`, with its `test.json` if it has ended."""
    history = JsonLog(folder / "metrics.jsonl").read()
    curves = {
        name: {
            row["step"]: value
            for row in history
            if (value := row.get(f"score/corpus/{name}")) is not None and isfinite(value)
        }
        for name in FIGURES
    }
    steps = [step for step in curves["accuracy"] if all(step in curves[n] for n in [*FIGURES][:3])]
    if not steps:
        raise ValueError(f"{folder}/metrics.jsonl must have a step with score/corpus/perplexity")
    *_, parent, name = folder.resolve().parts
    model = re.search(r"m[0-7](?![0-9])", name, re.IGNORECASE)
    test = folder / "test.json"
    return TransferRun(
        name,
        model.group().upper() if model else "",
        "Literature" if "literature" in f"{parent} {name}".lower() else "Yelp",
        [{"step": s, **{n: values.get(s) for n, values in curves.items()}} for s in steps],
        read_json(test) if test.is_file() else {},
    )


def common_accuracy(runs: Sequence[TransferRun]) -> float:
    """Return the accuracy that all runs come nearest to, 0 to 1.

    Sim and PP of two models can be compared at an equal accuracy only, as each is bought with it.
    The paper takes 0.8 or so, which a short run may never see. So this is the accuracy of a
    validation whose largest distance to the other runs is smallest, up to 0.01, and of several
    such accuracies the one nearest to 0.8.
    """

    def rank(accuracy: float) -> tuple[float, float]:
        distance = max(abs(run.nearest(accuracy)["accuracy"] - accuracy) for run in runs)
        return max(distance, 0.01), abs(accuracy - 0.8)

    return float(min((v["accuracy"] for run in runs for v in run.validations), key=rank))


def report(runs: Sequence[TransferRun], accuracy: float) -> str:
    """Return Tables 1, 2 or 3, and 6 of the runs in Markdown; models are compared at `accuracy`."""
    tables = {"Yelp": PUBLISHED["table_2"], "Literature": PUBLISHED["table_3"]}
    compared, best, tested, trends = [], [], [], []
    for run in runs:
        near, top, rho = run.nearest(accuracy), run.best(), run.trend()
        paper = dict(zip(FIGURES, tables[run.corpus].get(run.model, ()), strict=False))
        compared.append([run.name, str(near["step"]), *cells(near), *cells(paper)])
        best.append([run.name, str(top["step"]), *cells(top)])
        signed = ["undefined" if isnan(x) else f"{x:+.2f}" for x in rho.values()]
        trends.append([run.name, str(len(run.validations)), *signed])
        for name, row in run.test.items():
            theirs = PUBLISHED["table_6"].get(run.model if name == "selected" else name, ())
            beside = ", ".join(f"{value:g} ({acc:g})" for value, acc in theirs)
            figures = [*cells(row), bleu(row), beside if run.corpus == "Yelp" else ""]
            tested.append([run.name, name, str(row.get("step", "")), *figures])
    theirs = [f"paper's {name}" for name in _HEADINGS]
    bleus = ["BLEU", "paper's BLEU (at Acc)"]
    return "\n\n".join(
        [
            f"Tables 2 and 3: dev transfers at an Acc of about {accuracy:.3f}",
            markdown_table(["run", "step", *_HEADINGS, *theirs], compared),
            "Dev transfers at the best GM",
            markdown_table(["run", "step", *_HEADINGS], best),
            "Table 6: Li et al.'s test sentences; the paper's six rows of earlier models are not "
            "here",
            markdown_table(["run", "system", "step", *_HEADINGS, *bleus], tested),
            "Table 1: Spearman's ρ with the step, over the validations of a run",
            markdown_table(["run", "validations", *_HEADINGS], trends),
        ]
    )


def printed_rows() -> str:
    """Return the paper's rows of Tables 2 and 3, and GM by eq. 1 of their printed figures."""
    lines = []
    for corpus, table in (("Yelp", PUBLISHED["table_2"]), ("Literature", PUBLISHED["table_3"])):
        for model, figures in table.items():
            row = dict(zip(FIGURES, figures, strict=True))
            lines.append([corpus, model, *cells(row), f"{adjusted_gm(*figures[:3]):.1f}"])
    return markdown_table(["corpus", "model", *_HEADINGS, "GM by eq. 1"], lines)


def cells(row: Row) -> list[str]:
    """Return the figures as the paper prints them, "" for one that is absent or undefined.

    Examples:
        >>> cells({"accuracy": 0.8179, "perplexity": 37.31, "gm": None})
        ['0.818', '', '37.3', '']
    """
    values = ((row.get(name), digits) for name, digits in FIGURES.items())
    return ["" if x is None or not isfinite(x) else f"{x:.{digits}f}" for x, digits in values]


def bleu(row: Row) -> str:
    """Return the BLEU of a row, "" without one."""
    return f"{row['bleu']:.1f}" if "bleu" in row else ""


def draw_paths(runs: Sequence[TransferRun], path: Path) -> None:
    """Draw Figure 1 as a PNG: a point per validation, joined in their order, with the last step.

    The left panel has the error rate, 1 - Acc, on x and Sim on y, so that upper left is better; the
    right one Sim on x and PP on y, so that lower right is better.
    """
    matplotlib = import_extra("matplotlib.figure", "a figure")
    figure = matplotlib.Figure(figsize=(9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, run in enumerate(runs):
        style = {"color": f"C{number % 10}", "marker": "osD^vP"[number // 10]}
        rows = run.validations
        sides = (
            (left, [(1 - v["accuracy"], v["similarity"]) for v in rows]),
            (right, [(v["similarity"], v["perplexity"]) for v in rows]),
        )
        for panel, points in sides:
            xs, ys = zip(*points, strict=True)
            panel.plot(xs, ys, **style, markersize=4, linewidth=1, label=run.name)
            last = str(rows[-1]["step"])
            panel.annotate(last, points[-1], (4, 4), textcoords="offset points", fontsize=7)
    left.set(title="content against style", xlabel="error rate ↓", ylabel="similarity ↑")
    left.legend(fontsize=7)
    right.set(title="fluency against content", xlabel="similarity ↑", ylabel="perplexity ↓")
    with whole_file(path) as file:
        figure.savefig(file, dpi=130, format=path.suffix[1:] or "png")


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Print the tables of the runs, or the paper's rows without any."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="folder, named like m2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="also draw Figure 1")
    options = parser.parse_args(arguments)
    if not options.runs:
        print(printed_rows())
        return
    runs = [read_run(folder) for folder in options.runs]
    accuracy = common_accuracy(runs)
    print(report(runs, accuracy))
    if options.json is not None:
        content = [
            {"run": run.name, "model": run.model, "nearest": run.nearest(accuracy)}
            | {"best_gm": run.best(), "trend": run.trend(), "test": run.test}
            for run in runs
        ]
        write_whole(options.json, json_text({"accuracy": accuracy, "runs": content}))
    if options.figure is not None:
        draw_paths(runs, options.figure)


if __name__ == "__main__":
    main(sys.argv[1:])
