"""Scoring units: scorers that share their models, to be scored together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from ctrlreward.scorers import Component, CompositeScorer, ModelScorer, Scorer


def models_of(scorer: Scorer) -> frozenset[Hashable]:
    """Return a key of each model that a scorer uses; scorers with equal keys share the model.

    A model is identified by all that it is loaded with: name, device, dtype and token budget. The
    set is empty for a scorer that is neither a `ModelScorer` nor a `CompositeScorer`.
    """
    if isinstance(scorer, CompositeScorer):
        return frozenset(model for part in scorer.parts for model in models_of(part))
    if not isinstance(scorer, ModelScorer):
        return frozenset()
    if isinstance(scorer.model, Scorer):
        return models_of(scorer.model)
    if not isinstance(scorer.model, str):
        return frozenset([id(scorer.model)])
    return frozenset([(scorer.model, scorer.device, scorer.dtype, scorer.batch_tokens)])


def scoring_units(scorers: Sequence[Scorer]) -> list[list[Scorer]]:
    """Group scorers so that each unit can be scored and released before the next one is loaded.

    A scorer joins a scorer that uses all of its models, so a unit holds no more models than one of
    its scorers needs alone. A scorer without a known model is a unit of its own, and so is one that
    shares its models only with scorers that are pointwise where it is not.

    Args:
        scorers: Distinct scorers.

    Returns:
        The units in the order of their first scorers, and their scorers in the given order.
    """
    largest_first = sorted(scorers, key=lambda scorer: -len(models_of(scorer)))
    units: list[list[Scorer]] = []
    for scorer in largest_first:
        models = models_of(scorer)
        for unit in units:
            if models and models <= models_of(unit[0]) and unit[0].pointwise == scorer.pointwise:
                unit.append(scorer)
                break
        else:
            units.append([scorer])
    return sorted(
        (sorted(unit, key=scorers.index) for unit in units), key=lambda u: scorers.index(u[0])
    )


def titled_units(
    components: Mapping[str, Component],
) -> Iterator[tuple[str, dict[str, Component], bool]]:
    """Yield the components of each scoring unit, with a title for its progress.

    Args:
        components: Scores by name.

    Yields:
        The title (`"CTRLEval, Perplexity (1 of 2)"`), the components of one unit by name, and
        True if its scorers are pointwise.
    """
    units = scoring_units(list(dict.fromkeys(c.scorer for c in components.values())))
    for number, unit in enumerate(units, 1):
        title = ", ".join(type(scorer).__name__ for scorer in unit)
        title += f" ({number} of {len(units)})" if len(units) > 1 else ""
        own = {name: c for name, c in components.items() if c.scorer in unit}
        yield title, own, unit[0].pointwise
