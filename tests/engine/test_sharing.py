from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.engine.sharing import Request, Requests, run_requests, shared_model


class Doubling:
    """A model whose answer to a number is twice the number."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.calls: list[list[int]] = []

    def log_probs(self, tasks: Sequence[int]) -> list[int]:
        self.calls.append(list(tasks))
        return [2 * task for task in tasks]


def sum_of(asked: Sequence[tuple[Doubling, list[int]]]) -> Requests[int]:
    """Asks for one list after the other."""
    total = 0
    for model, tasks in asked:
        total += sum((yield Request(model, tasks)))
    return total


ASKED = st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 9), max_size=4)), max_size=3)


@given(st.lists(ASKED, max_size=4))
def test_everyone_gets_the_answers_to_what_was_asked(
    everyone: list[list[tuple[int, list[int]]]],
) -> None:
    models = [Doubling(), Doubling()]
    generators = [sum_of([(models[m], tasks) for m, tasks in asked]) for asked in everyone]
    assert run_requests(generators) == [sum(2 * sum(tasks) for _, tasks in one) for one in everyone]
    for place, model in enumerate(models):
        theirs = [n for one in everyone for m, tasks in one for n in tasks if m == place]
        assert sorted(n for call in model.calls for n in call) == sorted(theirs)


def test_what_is_asked_of_one_model_at_one_time_is_one_call() -> None:
    one, other = Doubling(), Doubling()
    found = run_requests(
        [sum_of([(one, [1]), (one, [2])]), sum_of([(other, [3])]), sum_of([(one, [4])])]
    )
    assert found == [6, 6, 8]
    assert one.calls == [[1, 4], [2]]
    assert other.calls == [[3]]


def test_what_a_model_or_an_asker_raises_is_raised() -> None:
    def failing() -> Requests[int]:
        yield Request(Doubling(), [1])
        raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        run_requests([sum_of([(Doubling(), [1])]), failing()])


def test_two_threads_ask_a_model_one_after_the_other() -> None:
    inside, most = 0, 0
    first_is_in, second_has_begun = threading.Event(), threading.Event()

    class Counting(Doubling):
        def log_probs(self, tasks: Sequence[int]) -> list[int]:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            first_is_in.set()
            second_has_begun.wait(10)
            inside -= 1
            return super().log_probs(tasks)

    model = Counting()

    def second() -> Requests[int]:
        second_has_begun.set()
        return (yield from sum_of([(model, [2])]))

    thread = threading.Thread(target=lambda: run_requests([sum_of([(model, [1])])]))
    thread.start()
    first_is_in.wait(10)
    assert run_requests([second()]) == [4]
    thread.join()
    assert most == 1
    assert model.calls == [[1], [2]]


def test_what_is_built_of_equal_arguments_is_shared_while_it_is_held() -> None:
    one = shared_model(Doubling, "a")
    assert shared_model(Doubling, "a") is one
    assert shared_model(Doubling, "b") is not one
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert shared_model(Doubling, "a").name == "a"
