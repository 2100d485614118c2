"""Report of a textual transfer run on sentences that selection has not seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from ctrlreward.callbacks import GenerationScorer, RewardCheckpoint
from ctrlreward.completion import fixed_randomness, generate
from ctrlreward.extras import import_extra
from ctrlreward.files import finite_or_none, json_line, write_whole
from ctrlreward.functional.transfer import SentenceScores
from ctrlreward.ranks import on_rank_zero
from ctrlreward.recipes.papers.textual_transfer.markdown_table import (
    HEADINGS,
    cells,
    markdown_table,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_baselines import (
    copies,
    corpus_transfer,
    sentence_scores,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_bleu import (
    read_references,
    reference_bleu,
    reference_meteor,
)
from ctrlreward.recipes.style_transfer import ScoringModels, Sentences
from ctrlreward.recipes.text_files import matching_key
from ctrlreward.samples import Samples

# Names of the checkpoints in the report, and the scores that select them.
BEST_GM, BEST_ACCURACY, LAST = "best_gm", "best_accuracy", "last"
_SELECTED_BY = {BEST_GM: "corpus/gm", BEST_ACCURACY: "corpus/accuracy"}


class TransferReport(pl.Callback):
    """Compares the checkpoints of a run by GM, and with baselines, at the end of training.

    Three checkpoints transfer the same sentences: the best by the corpus GM and the best by the
    corpus accuracy, each kept by a `RewardCheckpoint`, and the last weights, which the module has
    again afterwards. Sentences by which a `GenerationScorer` of the run selects are left out.

    Writes `transfers.jsonl`, a sentence a line with its outputs and their scores, and `test.json`:
    - `sentences`, the number transferred, `left_out` and `thresholds`;
    - `systems`: by checkpoint and for `copying`, `accuracy`, `similarity`, `perplexity` and `gm` of
      the corpus, the number `failed`, `bleu` and `meteor`; `step` of checkpoints;
    - `bleu_signature`.

    With references also `translations.jsonl`, a test sentence a line, with the `outputs` of each
    checkpoint next to the reference.

    Args:
        folder: Folder of the run's `HistoryLogger`.
        sentences: Test sentences. The template of their prompts is not used.
        scoring_models: Models that compute the scores.
        references: Style → file of its sentences, `source ⇥ reference`; see `read_references`.
            Empty for no BLEU and METEOR.
        name: Name of the `GenerationScorer`.
        seed: Seed of the transfers.

    Raises:
        MisconfigurationException: In `setup`: a `RewardCheckpoint` is absent, or selection sees
            all test sentences.
        ImportError: In `setup`: sacrebleu or nltk is not installed, and there are
            references.
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
        self.name = name
        self.seed = seed

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Raise before training if the report can't be written after it."""
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        for score in _SELECTED_BY.values():
            self._keeper(trainer, score)
        if not len(self._unseen(trainer)):
            raise MisconfigurationException(
                "TransferReport: all of its sentences are used for selection. Use other sentences."
            )
        if self.references is not None:
            import_extra("sacrebleu", "BLEU")
            import_extra("nltk", "METEOR")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Transfer with each checkpoint, score, and write both files."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            on_rank_zero(lambda: self._report(trainer, pl_module))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Free the judges' models."""
        self.quality.release()

    def _report(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        unseen = self._unseen(trainer)
        systems, translations = self._transfers(trainer, module, unseen)
        with fixed_randomness(self.seed):
            systems["copying"] = copies(unseen)
            scores = {name: sentence_scores(self.quality, each) for name, each in systems.items()}
        figures = {name: self._figures(each) for name, each in scores.items()}
        for name, score in _SELECTED_BY.items():
            figures[name]["step"] = self._keeper(trainer, score).selected_step
        figures[LAST]["step"] = trainer.global_step
        report: dict[str, Any] = {
            "sentences": len(unseen),
            "left_out": len(self.sentences) - len(unseen),
            "thresholds": self.quality.thresholds,
            "systems": figures,
        }
        if self.references is not None:
            for name, each in {**translations, "copying": copies(self.references)}.items():
                figures[name]["bleu"], report["bleu_signature"] = reference_bleu(each)
                figures[name]["meteor"] = reference_meteor(each)
            lines = _lines(self.references, translations)
            write_whole(self.folder / "translations.jsonl", lines)
        write_whole(self.folder / "transfers.jsonl", _lines(unseen, systems, scores))
        content = json.dumps(report, indent=2, ensure_ascii=False)
        write_whole(self.folder / "test.json", content + "\n")
        rows = [[name, *cells(row)] for name, row in figures.items()]
        print(markdown_table(["system", *HEADINGS], rows), flush=True)

    def _transfers(
        self, trainer: pl.Trainer, module: pl.LightningModule, unseen: Samples
    ) -> tuple[dict[str, Samples], dict[str, Samples]]:
        """Return the outputs of each checkpoint for the unseen sentences and for the references."""
        paths = {name: self._path(trainer, score) for name, score in _SELECTED_BY.items()}
        last = {key: value.detach().clone() for key, value in module.state_dict().items()}
        training = module.training
        systems: dict[str, Samples] = {}
        translations: dict[str, Samples] = {}
        module.eval()
        try:
            for name, path in {LAST: None, **paths}.items():
                if path is not None:
                    checkpoint = torch.load(path, map_location=module.device, weights_only=True)
                    module.load_state_dict(checkpoint["state_dict"], strict=module.strict_loading)
                with trainer.precision_plugin.val_step_context(), torch.no_grad():
                    systems[name] = generate(cast(Any, module), unseen, seed=self.seed)
                    if self.references is not None:
                        translations[name] = generate(
                            cast(Any, module), self.references, seed=self.seed
                        )
        finally:
            module.load_state_dict(last)
            module.train(training)
        ordered = {name: translations[name] for name in (*paths, LAST) if name in translations}
        return {name: systems[name] for name in (*paths, LAST)}, ordered

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

    def _keeper(self, trainer: pl.Trainer, score: str) -> RewardCheckpoint:
        monitor = f"{self.name}/{score}"
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, RewardCheckpoint) and callback.monitor == monitor:
                return callback
        raise MisconfigurationException(
            f"TransferReport compares the best checkpoint by {monitor}, but no callback keeps it. "
            f'Add RewardCheckpoint("{monitor}") to the callbacks.'
        )

    def _path(self, trainer: pl.Trainer, score: str) -> str:
        path = self._keeper(trainer, score).best_model_path
        if not path:
            raise RuntimeError(
                f"no validation had a finite {self.name}/{score}, so no checkpoint was kept. "
                "Validate more often or train longer."
            )
        return path

    def _figures(self, scores: SentenceScores) -> dict[str, Any]:
        corpus = asdict(corpus_transfer(scores, self.quality.thresholds))
        return {"failed": corpus.pop("failed"), **{k: finite_or_none(v) for k, v in corpus.items()}}


def _lines(
    prompts: Samples,
    outputs: Mapping[str, Samples],
    scores: Mapping[str, SentenceScores] | None = None,
) -> str:
    """Return a JSON line a prompt: its columns, its outputs by system, and their scores."""
    names = {"source": "sources", "label": "labels", "reference": "references"}
    own = prompts.columns()
    columns = {key: own[name] for key, name in names.items() if name in own}
    rows: list[dict[str, Any]] = []
    for i in range(len(prompts)):
        row: dict[str, Any] = {key: column[i] for key, column in columns.items()}
        row["outputs"] = {name: each.texts[i] for name, each in outputs.items()}
        if scores is not None:
            row["scores"] = {
                name: {key: finite_or_none(x[i]) for key, x in each._asdict().items()}
                for name, each in scores.items()
            }
        rows.append(row)
    return "".join(map(json_line, rows))
