"""Units of scorers: shared models, one load each, one unit in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import Samples
from ctrlreward.corpus.corpus_scoring import (
    Corpus,
    check_corpus,
    models_of,
    score_corpus,
    score_in_memory,
    scoring_units,
    unchanged_shards,
    write_output,
)
from ctrlreward.corpus.shard_store import ShardStore
from ctrlreward.corpus.workers import Shard, in_process
from ctrlreward.models.causal import CausalLM
from ctrlreward.scorers import (
    Accuracy,
    Alignment,
    AttributeClassifier,
    CompositeScorer,
    CTRLEval,
    Distinct,
    ModelScorer,
    Perplexity,
    Scorer,
    ScoreSpec,
    Similarity,
    TransferQuality,
)
from ctrlreward.scorers.base import Component, Scores
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import RowStream
from ctrlreward.tables.table_columns import Columns
from ctrlreward.tables.table_writing import TableShape

LETTERS = " abcdefghijklmnopqrstuvwxyzT."
SAMPLES = Samples(["Tea is hot.", "Tea is so.", "a cat is", "no"], labels=["positive"] * 4)


class Model:
    """A model whose scores are its name's length."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.itself = self  # a reference cycle, as torch modules have


class Stub(ModelScorer[Model]):
    """Records which of all models are alive when one is loaded."""

    events: list[tuple[str, list[str]]]
    built: list[weakref.ref[Model]]

    def __init__(self, model: str, score: str, pointwise: bool = True) -> None:
        super().__init__(model)
        self.score_name = score
        self.pointwise = pointwise

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {self.score_name: ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def build_model(self, name: str) -> Model:
        alive = [model.name for ref in Stub.built if (model := ref()) is not None]
        built = Model(name)
        Stub.events.append((name, alive))
        Stub.built.append(weakref.ref(built))
        return built

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return {self.score_name: np.full(len(samples), len(self.loaded_model.name), np.float64)}


class Pair(CompositeScorer):
    """Two scorers as one."""

    def __init__(self, *parts: Scorer) -> None:
        self._parts = parts

    @property
    def parts(self) -> Sequence[Scorer]:
        return self._parts

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {name: spec for part in self._parts for name, spec in part.specs.items()}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return {k: v for part in self._parts for k, v in part.score_samples(samples).items()}


class Plain(Scorer):
    """A scorer whose models nobody knows."""

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"plain": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return {"plain": np.zeros(len(samples))}


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stub, "events", [], raising=False)
    monkeypatch.setattr(Stub, "built", [], raising=False)


# Grouping


def test_named_models_are_equal_if_they_are_loaded_alike() -> None:
    same = [
        CTRLEval("a"),
        Perplexity("a"),
        Perplexity("a", device="cpu", dtype=None),
        Accuracy("a"),
    ]
    assert len({models_of(scorer) for scorer in same}) == 1
    other = [
        Perplexity("a", device="cuda"),
        Perplexity("a", dtype="bfloat16"),
        Perplexity("a", batch_tokens=64),
        Perplexity("./a"),
    ]
    assert len({models_of(scorer) for scorer in [*other, same[0]]}) == 5


def test_composite_scorers_use_the_models_of_their_parts() -> None:
    quality = TransferQuality(Accuracy("a"), Similarity("b"), Perplexity("c"))
    assert models_of(quality) == models_of(Accuracy("a")) | models_of(Similarity("b")) | models_of(
        Perplexity("c")
    )
    both = AttributeClassifier({"sentiment": "a", "topic": "c"})
    assert models_of(both) < models_of(quality)
    assert models_of(Accuracy(CTRLEval("a"))) == models_of(Perplexity("a"))


def test_a_loaded_model_is_itself() -> None:
    class Vectors:
        def embed(self, texts: Sequence[str], name: Callable[[int], str]) -> Scores:
            raise NotImplementedError

    one, other = Vectors(), Vectors()
    first, second, third = Similarity(one), Similarity(one), Similarity(other)  # type: ignore[arg-type]
    assert scoring_units([first, third, second]) == [[first, second], [third]]


def test_scorers_of_one_model_are_a_unit_in_the_order_given() -> None:
    ppl, senti, sim, topic = Perplexity("a"), CTRLEval("a"), Similarity("b"), CTRLEval("a", "topic")
    align, distinct = Alignment("b"), Distinct("a")
    units = scoring_units([ppl, distinct, sim, senti, align, topic])
    assert units == [[ppl, senti, topic], [distinct], [sim, align]]


def test_a_unit_has_no_more_models_than_its_largest_scorer() -> None:
    a, b, c = Stub("a", "a"), Stub("b", "b"), Stub("c", "c")
    left, right = Pair(Stub("a", "x"), Stub("b", "y")), Pair(Stub("b", "z"), Stub("c", "w"))
    assert scoring_units([b, left, right, c, a]) == [[b, left, a], [right, c]]


def test_scorers_without_a_known_model_and_not_pointwise_stay_alone() -> None:
    a, all_rows, one, other = Stub("a", "a"), Stub("a", "b", pointwise=False), Plain(), Plain()
    assert scoring_units([one, a, all_rows, other]) == [[one], [a], [all_rows], [other]]


@given(st.lists(st.frozensets(st.sampled_from("abcd")), max_size=8))
def test_grouping_never_adds_models(models: list[frozenset[str]]) -> None:
    scorers = [Pair(*(Stub(name, name) for name in sorted(names))) for names in models]
    units = scoring_units(scorers)
    assert sorted(map(id, (scorer for unit in units for scorer in unit))) == sorted(
        map(id, scorers)
    )
    for unit in units:
        held = frozenset[object]().union(*map(models_of, unit))
        assert held in map(models_of, unit)  # one of them needs all of these alone
    firsts = [scorers.index(unit[0]) for unit in units]
    assert firsts == sorted(firsts)


# Scoring unit by unit


def score_here(components: Mapping[str, Component]) -> dict[str, Scores]:
    shard = Shard(0, SAMPLES, [f"sample {i}" for i in range(len(SAMPLES))])
    with in_process() as score_shards:
        return score_in_memory(components, shard, score_shards)


def test_the_models_of_a_unit_die_before_the_next_load() -> None:
    scorers = [Stub("one", "a"), Stub("three", "b"), Stub("one", "c"), Stub("", "d")]
    gc.disable()  # no luck with the time of a collection
    try:
        scores = score_here({n: s[n] for s in scorers for n in s.specs})
    finally:
        gc.enable()
    assert {name: values.tolist() for name, values in scores.items()} == {
        "a": [3] * 4,
        "b": [5] * 4,
        "c": [3] * 4,
        "d": [0] * 4,
    }
    # Stubs share nothing, so the unit of "one" has two objects; none is left for the next unit.
    assert Stub.events == [("one", []), ("one", ["one"]), ("three", []), ("", [])]
    assert all(ref() is None for ref in Stub.built)


def test_progress_shows_the_texts_of_each_unit_from_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    score_here({"a": Stub("one", "a")["a"], "b": Stub("three", "b")["b"]})
    printed = capsys.readouterr()
    said = [line.split(" ", 1)[1] for line in printed.err.splitlines()]
    expected = [f"{name} ({k} of 2): {n} of 4" for k, name in ((1, "a"), (2, "b")) for n in (0, 4)]
    assert [line.partition(" texts")[0] for line in said] == expected
    assert said[0].endswith("4 texts, time left unknown")
    assert printed.out == ""


def test_a_shared_model_is_loaded_once_and_its_tasks_are_one_call(
    tiny_llama: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    folder = tiny_llama(LETTERS)
    loads: list[str] = []
    calls: list[int] = []
    load, answer = CausalLM.__init__, CausalLM.answer

    def counted_load(self: CausalLM, model: str, *options: object) -> None:
        loads.append(model)
        load(self, model, *options)  # type: ignore[arg-type]

    def counted_call(self: CausalLM, tasks: Sequence[object]) -> list[object]:
        calls.append(len(tasks))
        return answer(self, tasks)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(CausalLM, "__init__", counted_load)
    monkeypatch.setattr(CausalLM, "answer", counted_call)
    ppl, ctrleval = Perplexity(folder), CTRLEval(folder, aspects=["attribute_relevance"])
    components = {name: s[name] for s in (ppl, ctrleval) for name in s.specs}
    together = score_here(components)
    assert loads == [folder]
    assert len(calls) == 1
    alone = ppl.score(SAMPLES) | ctrleval.score(SAMPLES)
    assert list(together) == list(alone)
    for name, values in alone.items():
        np.testing.assert_allclose(together[name], values, rtol=1e-5)


def test_a_run_resumes_with_other_units(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    SAMPLES.to_jsonl(file)
    rows = RowStream(Location(file))
    components = {name: Stub("one", name)[name] for name in "abc"}
    corpus = Corpus(rows, Columns(), list(next(iter(rows))))
    shape = TableShape(".jsonl")
    manifest = check_corpus(corpus, components, {}, 2, [shape])
    store = ShardStore(Location(tmp_path / "out.partial"), "abc")
    store.write(0, {"a": np.zeros(2), "b": np.array([1.0, np.nan])})
    store.write(1, {"a": np.zeros(2)})
    with in_process() as score_shards:
        score_corpus(corpus, components, manifest, store, score_shards)
    resumed = ShardStore(Location(tmp_path / "out.partial"), "abc")
    found = [{name: s.tolist() for name, s in resumed.read(i).items()} for i in range(2)]
    assert repr(found[0]) == repr({"a": [0.0, 0.0], "b": [1.0, np.nan], "c": [3.0, 3.0]})
    assert found[1] == {"a": [0.0, 0.0], "b": [3.0, 3.0], "c": [3.0, 3.0]}
    output = Location(tmp_path / "out.jsonl")
    read = enumerate(unchanged_shards(corpus, manifest))
    shards = ((rows, resumed.read(i)) for i, rows in read)
    summary = write_output("abc", shards, [output], [shape])
    assert [summary[name] for name in "abc"] == [(0.0, 4, 0), (7 / 3, 4, 1), (3.0, 4, 0)]
