"""Tables 1 to 3 and 6 and Figure 1 of Pang & Gimpel (2019), beside the paper's figures.

    python -m ctrlreward.recipes.papers.textual_transfer.tables runs/textual_transfer/m0 …/m2

reads the folders of runs, named like their models, prints the tables, and draws the trade-offs of
style, content and fluency over training. `TransferReport` tests a run at its end.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from scipy.stats import spearmanr

from ctrlreward.callbacks import GenerationScorer, RewardCheckpoint
from ctrlreward.completion import fixed_randomness, generate
from ctrlreward.extras import import_extra
from ctrlreward.files import JsonLog, finite_or_none, json_line, json_text, read_json, write_whole
from ctrlreward.functional.transfer import SentenceScores, corpus_figures
from ctrlreward.models.words import separate_words
from ctrlreward.plots import SERIES, curve, finish_panel, mark_steps, new_figure, save_figure
from ctrlreward.ranks import on_rank_zero
from ctrlreward.recipes.style_transfer import ScoringModels, Sentences
from ctrlreward.recipes.text_files import matching_key, read_lines
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, score

PUBLISHED: Mapping[str, Any] = yaml.safe_load(
    files(__package__).joinpath("published_tables.yaml").read_text("utf-8")
)
"""Figures of Tables 2 to 6."""

# Figures with their digits, as the paper prints them.
FIGURES = {"accuracy": 3, "similarity": 3, "perplexity": 1, "gm": 1}
_HEADINGS = ("Acc", "Sim", "PP", "GM")
_BEST_GM, _BEST_ACCURACY, _LAST = "best_gm", "best_accuracy", "last"
_MONITORS = {_BEST_GM: "corpus/gm", _BEST_ACCURACY: "corpus/accuracy"}

Row = Mapping[str, Any]


def read_references(references: Mapping[str, str]) -> Samples:
    """Return sentences to transfer with a human reference each, and empty texts.

    Args:
        references: Style of the sentences → file of `source ⇥ reference` lines; two styles, each
            the target of the other.
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
    with `tokenize=none` and `smooth_method=none`. Both sides are tokenized like the corpus: Li et
    al.'s references are not (`food.`, not `food .`). The one row of Table 6 that needs no model is
    the untransferred input: 31.3 with these settings, 31.4 in the paper, 24.8 without separation.
    """
    metrics = import_extra("sacrebleu.metrics", "BLEU")
    # force: otherwise sacrebleu warns about texts that end in a separated full stop.
    bleu = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
    references = samples.require("references", "reference_bleu")
    texts, targets = (list(map(separate_words, side)) for side in (samples.texts, references))
    return float(bleu.corpus_score(texts, [targets]).score)


class TransferReport(pl.Callback):
    """Compares the checkpoints of a run by GM, and with copies of the sources, after training.

    Three checkpoints transfer the same sentences: the best by the corpus GM and the best by the
    corpus accuracy, each kept by a `RewardCheckpoint`, and the last weights, which the module has
    again afterwards. Sentences by which a `GenerationScorer` of the run selects are left out.

    Writes `test.json` with accuracy, similarity, perplexity and GM of each system's corpus, the
    number `failed`, BLEU with references, and the `step` of checkpoints; `transfers.jsonl`, a
    sentence a line with its outputs and their scores; and with references `translations.jsonl`,
    the same without scores.

    Args:
        folder: Folder of the run's `HistoryLogger`.
        sentences: Test sentences. The template of their prompts is not used.
        scoring_models: Models that compute the scores.
        references: See `read_references`; None for no BLEU.
        name: Name of the `GenerationScorer`.
        seed: Seed of the transfers.

    Raises:
        MisconfigurationException: In `setup`: a `RewardCheckpoint` is absent, or selection sees
            all test sentences.
    """

    def __init__(
        self,
        folder: str,
        sentences: Sentences,
        scoring_models: ScoringModels,
        references: dict[str, str] | None = None,
        name: str = "score",
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.sentences = sentences.prompts()
        self.references = read_references(references) if references else None
        self.quality = scoring_models.quality()
        self.name, self.seed = name, seed

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Raise before training if the report can't be written after it."""
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        for monitor in _MONITORS.values():
            self._checkpoint(trainer, monitor)
        if not len(self._unseen(trainer)):
            raise MisconfigurationException(
                "sentences of TransferReport must have one that selection does not use"
            )
        if self.references is not None:
            import_extra("sacrebleu", "BLEU")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Transfer with each checkpoint, score, write the files, and print the table."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            on_rank_zero(lambda: self._report(trainer, pl_module))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Free the judges' models."""
        self.quality.release()

    def _report(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        unseen = self._unseen(trainer)
        steps = {name: self._checkpoint(trainer, m).selected_step for name, m in _MONITORS.items()}
        steps[_LAST] = trainer.global_step
        systems, translations = self._transfers(trainer, module, unseen)
        systems["copying"] = unseen.replace(texts=unseen.sources)
        figures: dict[str, dict[str, Any]] = {}
        scores: dict[str, SentenceScores] = {}
        with fixed_randomness(self.seed):
            for name, samples in systems.items():
                wanted = {part: Component(self.quality, part) for part in SentenceScores._fields}
                scores[name] = found = SentenceScores(**score(wanted, samples).warned())
                corpus = corpus_figures(found, self.quality.thresholds)
                figures[name] = {key: finite_or_none(value) for key, value in corpus.items()}
                figures[name]["failed"] = int(found.failed.sum())
        for name, step in steps.items():
            figures[name]["step"] = step
        if self.references is not None:
            copied = self.references.replace(texts=self.references.sources)
            for name, samples in {**translations, "copying": copied}.items():
                figures[name]["bleu"] = reference_bleu(samples)
            write_whole(self.folder / "translations.jsonl", _lines(self.references, translations))
        write_whole(self.folder / "transfers.jsonl", _lines(unseen, systems, scores))
        report = {
            "sentences": len(unseen),
            "left_out": len(self.sentences) - len(unseen),
            "thresholds": self.quality.thresholds,
            "systems": figures,
        }
        write_whole(self.folder / "test.json", json_text(report))
        rows = [[name, *cells(row), bleu(row)] for name, row in figures.items()]
        print(markdown_table(["system", *_HEADINGS, "BLEU"], rows), flush=True)

    def _transfers(
        self, trainer: pl.Trainer, module: pl.LightningModule, unseen: Samples
    ) -> tuple[dict[str, Samples], dict[str, Samples]]:
        """Return the outputs of each checkpoint for the unseen sentences and for the references."""
        last = {key: value.detach().clone() for key, value in module.state_dict().items()}
        training = module.training
        systems: dict[str, Samples] = {}
        translations: dict[str, Samples] = {}
        module.eval()
        try:
            for name in (_BEST_GM, _BEST_ACCURACY, _LAST):
                state = last
                if name != _LAST:
                    path = self._checkpoint(trainer, _MONITORS[name]).best_model_path
                    if not path:
                        raise RuntimeError(f"no validation had a finite {_MONITORS[name]}")
                    file = torch.load(path, map_location=module.device, weights_only=True)
                    state = file["state_dict"]
                module.load_state_dict(state, strict=module.strict_loading)
                with trainer.precision_plugin.val_step_context(), torch.no_grad():
                    systems[name] = generate(cast(Any, module), unseen, seed=self.seed)
                    if self.references is not None:
                        texts = generate(cast(Any, module), self.references, seed=self.seed)
                        translations[name] = texts
        finally:
            module.load_state_dict(last)
            module.train(training)
        return systems, translations

    def _unseen(self, trainer: pl.Trainer) -> Samples:
        """Return the sentences without the ones used for selection, ignoring case and spacing."""
        seen = {
            matching_key(source)
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            if isinstance(callback, GenerationScorer)
            for source in callback.samples.sources or ()
        }
        sources = self.sentences.require("sources", "TransferReport")
        return self.sentences[[i for i, s in enumerate(sources) if matching_key(s) not in seen]]

    def _checkpoint(self, trainer: pl.Trainer, score: str) -> RewardCheckpoint:
        monitor = f"{self.name}/{score}"
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, RewardCheckpoint) and callback.monitor == monitor:
                return callback
        raise MisconfigurationException(f"TransferReport needs RewardCheckpoint({monitor!r})")


def _lines(
    prompts: Samples,
    outputs: Mapping[str, Samples],
    scores: Mapping[str, SentenceScores] | None = None,
) -> str:
    """Return a JSON line a prompt: its columns, its outputs by system, and their scores."""
    names = {"source": "sources", "label": "labels", "reference": "references"}
    columns = prompts.columns()
    lines = []
    for i in range(len(prompts)):
        row = {key: columns[name][i] for key, name in names.items() if name in columns}
        row["outputs"] = {name: samples.texts[i] for name, samples in outputs.items()}
        if scores is not None:
            row["scores"] = {
                name: {key: finite_or_none(x[i]) for key, x in own._asdict().items()}
                for name, own in scores.items()
            }
        lines.append(json_line(row))
    return "".join(lines)


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

    def trend(self) -> dict[str, float | None]:
        """Return Spearman's ρ of each figure with the step (Table 1), None where undefined."""
        steps = [v["step"] for v in self.validations]
        columns = {name: [v[name] for v in self.validations] for name in FIGURES}
        return {
            name: finite_or_none(spearmanr(steps, values).statistic)
            if None not in values and len(set(values)) > 1
            else None
            for name, values in columns.items()
        }


def _gm(validation: Row) -> float:
    return -1.0 if validation["gm"] is None else float(validation["gm"])


def read_run(folder: Path) -> TransferRun:
    """Read a run from the folder of its `HistoryLogger`, with its `test.json` if it has ended.

    Raises:
        ValueError: No validation has accuracy, similarity and perplexity of the corpus.
    """
    history = JsonLog(folder / "metrics.jsonl").read()
    curves = {
        name: dict(zip(*curve(history, f"score/corpus/{name}"), strict=True)) for name in FIGURES
    }
    steps = [step for step in curves["accuracy"] if all(step in curves[n] for n in [*FIGURES][:3])]
    if not steps:
        raise ValueError(f"{folder}/metrics.jsonl must have a step with score/corpus/perplexity")
    model = re.search(r"m[0-7](?![0-9])", folder.resolve().name, re.IGNORECASE)
    literature = any("literature" in part.lower() for part in folder.resolve().parts[-2:])
    report = folder / "test.json"
    return TransferRun(
        folder.resolve().name,
        model.group().upper() if model else "",
        "Literature" if literature else "Yelp",
        [{"step": s, **{n: values.get(s) for n, values in curves.items()}} for s in steps],
        read_json(report) if report.is_file() else {},
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
    selected = {_BEST_GM: "selected by GM", _BEST_ACCURACY: "selected by Acc", _LAST: "last epoch"}
    compared, best, tested, trends = [], [], [], []
    for run in runs:
        near, top, rho = run.nearest(accuracy), run.best(), run.trend()
        paper = dict(zip(FIGURES, tables[run.corpus].get(run.model, ()), strict=False))
        compared.append([run.name, str(near["step"]), *cells(near), *cells(paper)])
        best.append([run.name, str(top["step"]), *cells(top)])
        signed = ["undefined" if x is None else f"{x:+.2f}" for x in rho.values()]
        trends.append([run.name, str(len(run.validations)), *signed])
        for name, row in run.test.get("systems", {}).items():
            theirs = PUBLISHED["table_6"].get(run.model if name == _BEST_GM else name, ())
            beside = ", ".join(f"{value:g} ({acc:g})" for value, acc in theirs)
            paper_bleu = beside if run.corpus == "Yelp" else ""
            step = str(row.get("step", ""))
            figures = [*cells(row), bleu(row), paper_bleu]
            tested.append([run.name, selected.get(name, name), step, *figures])
    theirs = [f"paper's {name}" for name in _HEADINGS]
    return "\n\n".join(
        [
            f"Tables 2 and 3: dev transfers at an Acc of about {accuracy:.3f}",
            markdown_table(["run", "step", *_HEADINGS, *theirs], compared),
            "Dev transfers at the best GM",
            markdown_table(["run", "step", *_HEADINGS], best),
            "Table 6: test sentences that selection has not seen, and BLEU; the paper's six rows "
            "of earlier models are not here",
            markdown_table(
                ["run", "system", "step", *_HEADINGS, "BLEU", "paper's BLEU (at Acc)"], tested
            ),
            "Table 1: Spearman's ρ with the step, over the validations of a run",
            markdown_table(["run", "validations", *_HEADINGS], trends),
        ]
    )


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


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [":".ljust(widths[0], "-"), *(":".rjust(width, "-") for width in widths[1:])]
    lines = []
    for first, *others in (header, rule, *rows):
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(" | ".join([first.ljust(widths[0]), *right]))
    return "\n".join(f"| {line} |" for line in lines)


def draw_paths(runs: Sequence[TransferRun], path: Path) -> None:
    """Draw Figure 1 as a PNG: a point per validation, joined in their order, with the last step.

    The left panel has the error rate, 1 - Acc, on x and Sim on y, so that upper left is better; the
    right one Sim on x and PP on y, so that lower right is better.
    """
    figure = new_figure(9.6, 3.8)
    left, right = figure.subplots(1, 2)
    for number, run in enumerate(runs):
        style = {"color": SERIES[number % len(SERIES)], "marker": "osD^vP"[number // len(SERIES)]}
        points = [(v["accuracy"], v["similarity"], v["perplexity"]) for v in run.validations]
        sides = (
            (left, [(1 - accuracy, similarity) for accuracy, similarity, _ in points]),
            (right, [(similarity, perplexity) for _, similarity, perplexity in points]),
        )
        for panel, pairs in sides:
            xs, ys = zip(*pairs, strict=True)
            panel.plot(xs, ys, **style, markersize=4, linewidth=1, label=run.name)
            mark_steps(panel, [run.validations[-1]["step"]], pairs[-1:])
    finish_panel(left, "content against style", "error rate ↓", "similarity ↑", legend=True)
    finish_panel(right, "fluency against content", "similarity ↑", "perplexity ↓")
    save_figure(figure, path)


def main(arguments: Sequence[str]) -> None:
    """Print the tables of the runs."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder, named like m2")
    parser.add_argument("--accuracy", type=float, help="Acc at which models are compared")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="also draw Figure 1")
    options = parser.parse_args(arguments)
    runs = [read_run(folder) for folder in options.runs]
    accuracy = common_accuracy(runs) if options.accuracy is None else options.accuracy
    print(report(runs, accuracy))
    if options.json is not None:
        content = [
            {
                "run": run.name,
                "model": run.model,
                "nearest": run.nearest(accuracy),
                "best_gm": run.best(),
                "trend": run.trend(),
                "test": run.test,
            }
            for run in runs
        ]
        write_whole(options.json, json.dumps({"accuracy": accuracy, "runs": content}, indent=2))
    if options.figure is not None:
        draw_paths(runs, options.figure)


if __name__ == "__main__":
    main(sys.argv[1:])
