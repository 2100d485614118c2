"""Style transfer systems under the same judges on the same test sentences.

`ctrlreward papers compare-systems --config configs/style_transfer/systems_yelp.yaml
--system NAME=FILE --output FOLDER` writes `systems.md`, `systems.json`, `rewritings.md` and
`systems.png`; `--help` lists the options.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from ctrlreward.arguments import checked_keywords
from ctrlreward.extras import import_extra
from ctrlreward.files import check_writable, write_whole
from ctrlreward.models.encoder import SentenceEncoder
from ctrlreward.progress import track
from ctrlreward.recipes.papers.li2018.system_figures import SystemJudges
from ctrlreward.recipes.papers.li2018.system_outputs import (
    CONSTANT,
    COPIES,
    REFERENCES,
    SystemOutputs,
    named_files,
    of_all,
    rated_outputs,
    read_outputs,
)
from ctrlreward.recipes.papers.li2018.system_report import (
    acceptance,
    differences,
    draw_systems,
    rewritings,
    systems_text,
    validation_trail,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_baselines import best_constants, constants
from ctrlreward.recipes.papers.textual_transfer.transfer_bleu import read_references
from ctrlreward.recipes.papers.textual_transfer.transfer_comparisons import plain_estimate
from ctrlreward.recipes.style_transfer import ScoringModels
from ctrlreward.recipes.text_files import distinct_texts
from ctrlreward.scorers import Accuracy, Similarity

log = logging.getLogger(__name__)


@checked_keywords(judges="scoring_models")
def compare_systems(
    scoring_models: ScoringModels,
    independent: Accuracy,
    references: dict[str, str],
    output: str,
    uncentred: str | SentenceEncoder | None = None,
    constant_files: dict[str, str] | None = None,
    ratings: str | None = None,
    system: Sequence[str] = (),
    selected: str | None = None,
    against: Sequence[str] = (),
    run: Sequence[str] = (),
    resamples: int = 2000,
    seed: int = 0,
) -> str:
    """Write the table of all systems, its JSON, rewritings and a picture, and return the table.

    Args:
        scoring_models: The judges of the reward, with the thresholds of GM.
        independent: Accuracy by a classifier that the reward does not use.
        references: Style → file of its test sentences, `source ⇥ reference`.
        output: Folder to write.
        uncentred: Encoder of a second similarity.
        constant_files: Style → file of training sentences, of which one is the constant output.
        ratings: Li et al.'s rated transfers, whose systems are compared as well; see
            `rated_outputs`.
        system: `NAME=FILE` of further systems; see `read_outputs`.
        selected: System whose GM is compared with others, and which is checked.
        against: The others; by default copying, the constant sentences and each of `system`.
        run: Folders of runs whose validations are drawn as trails; see `validation_trail`.
        resamples: Number of draws of each interval, 1 or more.
        seed: Seed of the draws and of the choice of constants.

    Raises:
        ValueError: A file of outputs lacks a sentence or has it twice, `selected` or `against`
            does not name a system with all sentences, or two systems have the same name.
        ImportError: sacrebleu or nltk is not installed.
    """
    import_extra("sacrebleu", "BLEU")
    import_extra("nltk", "METEOR")
    folder = Path(output)
    check_writable(folder / "systems.md")
    test = read_references(references)
    sources, humans = test.require("sources", "test"), test.require("references", "test")
    given = [read_outputs(name, file, test) for name, file in named_files(system)]
    systems = [of_all(REFERENCES, test, humans), of_all(COPIES, test, sources)]
    quality = scoring_models.quality()
    sentences: dict[str, str] = {}
    if constant_files:
        held_out = [*references.values()]
        candidates = {
            style: distinct_texts([file], held_out, (1, None))
            for style, file in constant_files.items()
        }
        sentences = best_constants(quality, candidates, seed)
        systems.append(of_all(CONSTANT, test, constants(test, sentences).texts))
    if ratings is not None:
        systems += rated_outputs(ratings, test)
    systems += given
    others = _others(systems, len(test), selected, against, [each.name for each in given])
    trails = {Path(folder).name: validation_trail(Path(folder)) for folder in run}
    similarity = None if uncentred is None else Similarity(uncentred, device=scoring_models.device)
    panel = SystemJudges(quality, independent, similarity, resamples, seed)
    figures = {}
    with track("scoring systems", sum(len(each.rows) for each in systems)) as advance:
        for each in systems:
            figures[each.name] = panel.figures(each)
            advance(len(each.rows))
    found = differences(figures, selected, others, scoring_models.thresholds, resamples, seed)
    checks = acceptance(figures, selected, found)
    text = systems_text(figures, selected, found, checks)
    content: dict[str, Any] = {
        "sentences": len(test),
        "thresholds": scoring_models.thresholds,
        "bleu_signature": figures[COPIES].bleu_signature,
        "systems": {name: each.plain() for name, each in figures.items()},
        "constants": sentences,
        "selected": selected,
        "differences": {name: plain_estimate(each) for name, each in found.items()},
        "checks": [check._asdict() for check in checks],
    }
    write_whole(folder / "systems.md", text + "\n")
    write_whole(folder / "systems.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_whole(folder / "rewritings.md", rewritings(test, given) + "\n")
    try:
        draw_systems(figures, trails, folder / "systems.png")
    except ImportError as error:  # the table counts without matplotlib
        log.warning("%s", error)
    return text


def main(arguments: Sequence[str]) -> None:
    """Compare the systems of a command line, and print the table.

    Raises:
        SystemExit: With status 2 after a wrong option or a file that can't be used.
    """
    repeated = {
        "system": "NAME=FILE of outputs, JSONL; may be repeated",
        "against": "system to compare the selected one with; may be repeated",
        "run": "folder of a run whose validations are drawn; may be repeated",
    }
    parser = ArgumentParser(
        prog="ctrlreward papers compare-systems",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--config", action="config", help="YAML file of options")
    parser.add_function_arguments(compare_systems, skip=set(repeated))
    for name, purpose in repeated.items():
        parser.add_argument(f"--{name}", action="append", default=[], type=str, help=purpose)
    parsed = parser.parse_args(arguments)
    try:
        options = parser.instantiate(parsed).as_dict()
        options.pop("config")
        print(compare_systems(**options), flush=True)
    except (OSError, TypeError, ValueError) as error:
        parser.error(str(error))


def _others(
    systems: Sequence[SystemOutputs],
    n: int,
    selected: str | None,
    against: Sequence[str],
    given: Sequence[str],
) -> list[str]:
    """Return the systems that the selected one is compared with."""
    sizes: dict[str, int] = {}
    for system in systems:
        if system.name in sizes:
            raise ValueError(f"two systems are named {system.name}. Rename one.")
        sizes[system.name] = len(system.rows)
    if selected is None:
        if against:
            raise ValueError("against needs selected. Name the system to compare.")
        return []
    for name in (selected, *against):
        if name not in sizes:
            raise ValueError(f"{name} is not a system, must be one of {', '.join(sizes)}")
        if sizes[name] != n:
            raise ValueError(
                f"{name} has {sizes[name]} of {n} sentences: compare systems that have all"
            )
    names = against or [name for name in (COPIES, CONSTANT, *given) if name in sizes]
    return [name for name in dict.fromkeys(names) if name != selected]
