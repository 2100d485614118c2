"""Agreement with human ratings while an aligner is trained: Figure 7 of CTC (Deng et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import pytorch_lightning as pl

from ctrlreward.arguments import one_of
from ctrlreward.ranks import on_rank_zero
from ctrlreward.recipes.papers.ctc.rated_ctc import ASPECTS
from ctrlreward.recipes.papers.ctc.trainers import AlignerTrainer, RegressionAlignerTrainer
from ctrlreward.recipes.papers.meta_eval.correlations import STATISTICS
from ctrlreward.recipes.papers.meta_eval.rated_files import read_ctc
from ctrlreward.recipes.papers.meta_eval.rating_correlation import correlate
from ctrlreward.scorers.alignment import Alignment, Method


class RatedAgreement(pl.Callback):
    """Correlation of an aligner's scores with human ratings at each validation of its training.

    Logs `agreement/<file>_<aspect>` for each aspect that a file rates, -1 to 1, higher is better;
    NaN if a side is constant. `ctrlreward.runs.plot_run` draws the curves of the run. The
    training reads nothing of it: a rated file is neither trained on nor selected by.

    Args:
        files: Rated files, as `ctrlreward meta-eval ctc` reads them; relevance is left out.
        statistic: `"pearson"`, as in the paper, `"spearman"` or `"kendall"`.
        stop_words: File of words that engagingness and groundedness ignore, one per line.

    Raises:
        ValueError: A file cannot be read, two files have one name, or `statistic` is unknown.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> rows = [
        ...     {"system": "a", "document": "The pool opens.", "summary": "Open.", "consistency": i}
        ...     for i in range(3)
        ... ]
        >>> _ = Path("rated.json").write_text(json.dumps(rows))
        >>> RatedAgreement(["rated.json"]).statistic
        'pearson'
    """

    def __init__(
        self,
        files: Sequence[str],
        statistic: Literal["pearson", "spearman", "kendall"] = "pearson",
        stop_words: str | None = None,
    ) -> None:
        self.rated = {Path(file).stem: read_ctc(Path(file).expanduser()) for file in files}
        if len(self.rated) < len(files):
            raise ValueError(f"files = {list(files)} must have different names")
        self.statistic = one_of("statistic", statistic, STATISTICS)
        self.stop_words = stop_words

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Score the files with the current model, on rank 0, and log the correlations."""
        if trainer.sanity_checking:
            return
        if not isinstance(pl_module, AlignerTrainer):
            raise TypeError(f"RatedAgreement needs an AlignerTrainer, not {type(pl_module)}")
        trial = trainer.fast_dev_run  # type: ignore[attr-defined]  # set by name
        values = on_rank_zero(lambda: self._correlate(pl_module, 2 if trial else None))
        pl_module.log_dict(values, batch_size=1, sync_dist=True)

    def _correlate(self, trained: AlignerTrainer, rows: int | None) -> dict[str, float]:
        regression = isinstance(trained, RegressionAlignerTrainer)
        method: Method = "regression" if regression else "discriminative"
        found = {}
        with TemporaryDirectory() as folder:
            trained.model.save_pretrained(folder)
            trained.tokenizer.save_pretrained(folder)
            for file, rated in self.rated.items():
                aspects = {a: r for r, a in ASPECTS.items() if r in rated.ratings}
                aspects.pop("relevance", None)  # of references, by a separate aligner
                scorer = Alignment(folder, tuple(aspects), method, self.stop_words)
                scores = scorer.score(rated.samples[:rows])
                for aspect, rating in aspects.items():
                    values = correlate(scores[aspect], rated.ratings[rating][:rows])
                    value = values[self.statistic]
                    found[f"agreement/{file}_{aspect}"] = np.nan if value is None else value
                scorer.release()
        return found
