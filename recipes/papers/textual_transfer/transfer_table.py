"""Tables 2 and 3 of Pang & Gimpel (2019) from the folders of several runs.

`python -m …transfer_table RUN... --output FOLDER` reads runs of
`configs/textual_transfer/` and writes `table.md`, `table.json` and `trajectories.png`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ctrlreward.files import write_whole
from ctrlreward.recipes.papers.textual_transfer.markdown_table import (
    FIGURES,
    HEADINGS,
    cells,
    markdown_table,
)
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED
from ctrlreward.recipes.papers.textual_transfer.transfer_comparisons import trend
from ctrlreward.recipes.papers.textual_transfer.transfer_runs import (
    LITERATURE,
    TransferRun,
    common_accuracy,
    read_transfer_run,
)
from ctrlreward.recipes.style_transfer.tradeoff import draw_transfer_paths

_SELECTED = {"best_gm": "selected by GM", "best_accuracy": "selected by Acc", "last": "last epoch"}


def main(arguments: Sequence[str]) -> None:
    """Read the runs, write the three files, and print the table."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, named like m2")
    parser.add_argument("--output", metavar="FOLDER", required=True)
    parser.add_argument(
        "--accuracy",
        type=float,
        help="accuracy at which the models are compared; by default the one that all runs come "
        "nearest to",
    )
    options = parser.parse_args(arguments)
    try:
        runs = [read_transfer_run(Path(folder)) for folder in options.runs]
        print(write_tables(runs, Path(options.output), options.accuracy))
    except (ValueError, OSError) as error:
        parser.error(str(error))


def write_tables(runs: Sequence[TransferRun], folder: Path, accuracy: float | None = None) -> str:
    """Write `table.md`, `table.json` and `trajectories.png`, and return the content of the first.

    Args:
        runs: One run or more.
        folder: Where to write; it is created.
        accuracy: Accuracy at which the models are compared, 0 to 1; None takes `common_accuracy`.

    Raises:
        ValueError: The accuracy is out of range.
        ImportError: matplotlib is not installed.
    """
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise ValueError(f"accuracy must be a share, 0 to 1, got {accuracy}")
    if accuracy is None:
        accuracy = common_accuracy(runs)
    text = "\n\n".join(
        [
            f"At an Acc of about {accuracy:.3f}, on dev transfers, with the paper's "
            f"{' and '.join(dict.fromkeys(_table(run)[0] for run in runs))}:",
            markdown_table(
                ["run", "step", *HEADINGS[:4], *(f"paper's {name}" for name in HEADINGS[:4])],
                [_validation_row(run, run.nearest(accuracy)) for run in runs],
            ),
            "At the best GM on dev transfers:",
            markdown_table(
                ["run", "step", *HEADINGS[:4]],
                [_validation_row(run, run.best())[:6] for run in runs],
            ),
            "On test sentences that selection has not seen, with BLEU, next to the paper's Table "
            "6, of which the package lacks the six rows of earlier models:",
            markdown_table(
                ["run", "system", "step", *HEADINGS, "paper's BLEU (at Acc)"],
                [row for run in runs for row in _test_rows(run)],
            ),
            *_sentences(runs),
        ]
    )
    content = {
        "accuracy": accuracy,
        "runs": [
            {
                "run": run.name,
                "model": run.model,
                "nearest": run.row(run.nearest(accuracy)),
                "best_gm": run.row(run.best()),
                "trend": trend(run),
                "test": run.test,
            }
            for run in runs
        ],
        "paper": {name: PUBLISHED[name] for name in ("table_2", "table_3", "table_6")},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "table.md", text + "\n")
    write_whole(folder / "table.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    draw_transfer_paths([(run.name, run.points) for run in runs], folder / "trajectories.png")
    return text


def _table(run: TransferRun) -> tuple[str, Mapping[str, Sequence[float]]]:
    """Return the paper's table of a run's corpus, with its name."""
    if run.corpus == LITERATURE:
        return "Table 3 (Literature)", PUBLISHED["table_3"]
    return "Table 2 (Yelp)", PUBLISHED["table_2"]


def _validation_row(run: TransferRun, i: int) -> list[str]:
    row = run.row(i)
    paper = dict(zip(FIGURES, _table(run)[1].get(run.model, ()), strict=False))
    return [run.name, str(row["step"]), *cells(row)[:4], *cells(paper)[:4]]


def _test_rows(run: TransferRun) -> list[list[str]]:
    rows = []
    for name, figures in run.test.get("systems", {}).items():
        table = {} if run.corpus == LITERATURE else PUBLISHED["table_6"]
        paper = table.get(run.model if name == "best_gm" else name, ())
        beside = ", ".join(f"{bleu:g} ({accuracy:g})" for bleu, accuracy in paper)
        step = str(figures.get("step", ""))
        rows.append([run.name, _SELECTED.get(name, name), step, *cells(figures), beside])
    return rows


def _sentences(runs: Sequence[TransferRun]) -> list[str]:
    """Return each run's trend (Table 1)."""
    lines = []
    for run in runs:
        found = trend(run)
        line = f"{run.name}: Spearman of Acc and step {_signed(found['accuracy'])}, "
        line += f"of Sim and step {_signed(found['similarity'])}, over {found['n']} validations."
        lines.append(line)
    return lines


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{value:+.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
