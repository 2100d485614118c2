"""Scores of a data set of Ray, on the CPUs and GPUs of several machines."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ctrlreward.extras import import_extra
from ctrlreward.scorers import Scorer
from ctrlreward.scorers.base import score
from ctrlreward.scorers.components import name_components
from ctrlreward.tables.columns import Columns, explained_columns, to_samples


def score_dataset(
    dataset: Any,
    scorers: Sequence[Scorer],
    *,
    names: Sequence[str] | None = None,
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    label_map: Mapping[str, str] | None = None,
    actors: int = 1,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    batch_size: int = 256,
) -> Any:
    """Return a data set of Ray with a column for each score, null where a row failed.

    Ray reads, scores and writes the rows in a stream, and scores the batch of a worker that died
    again, three times at most. Each machine needs this package and the weights.

    Args:
        dataset: A `ray.data.Dataset`, such as `ray.data.read_parquet("s3://bucket/corpus")`.
        scorers: Scorers whose models are not loaded; each actor loads its own.
        names: One name per scorer, which prefixes the names of its scores.
        columns: Names of the data set's columns.
        label_map: The data set's labels and their replacements.
        actors: Processes that score, each with its own models.
        num_cpus: CPUs of an actor.
        num_gpus: GPUs of an actor, such as 1 or 0.5; above 0, its models are on `cuda`.
        batch_size: Rows that an actor scores together.

    Raises:
        ValueError: A scorer compares texts with each other, as `Distinct` does.
    """
    for scorer in scorers:
        if not scorer.pointwise:
            raise ValueError(
                f"{type(scorer).__name__} compares texts with each other, which are on several "
                "machines here"
            )
    device = "cuda" if num_gpus else None
    with warnings.catch_warnings():
        # Ray 2.60 deprecates options without a parameter of their own, as this one's retries.
        warnings.simplefilter("ignore", DeprecationWarning)
        return dataset.map_batches(
            BatchScorer,
            fn_constructor_args=(scorers, names, columns, label_map, device),
            batch_format="pyarrow",
            batch_size=batch_size,
            compute=import_extra("ray.data", "score_dataset").ActorPoolStrategy(size=actors),
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            max_task_retries=3,  # without end by default: a text may end any process
        )


class BatchScorer:
    """Adds scores to Arrow tables: an actor of `score_dataset`."""

    def __init__(
        self,
        scorers: Sequence[Scorer],
        names: Sequence[str] | None,
        columns: Columns,
        label_map: Mapping[str, str] | None,
        device: str | None,
    ) -> None:
        self.scorers, self.names, self.columns, self.label_map = scorers, names, columns, label_map
        for scorer in scorers if device else ():
            scorer.to(str(device))

    def __call__(self, table: Any) -> Any:
        """Return the table with a column for each score."""
        pyarrow = import_extra("pyarrow", "score_dataset")
        samples = to_samples(table.to_pylist(), self.columns, label_map=self.label_map)
        with explained_columns(table.column_names):
            components = name_components(self.scorers, self.names, samples)
            scores = score(components, samples).warned()
        for name, values in scores.items():
            table = table.append_column(name, pyarrow.array(values, from_pandas=True))
        return table
