from __future__ import annotations

import gc
import threading
import weakref

import torch

from ctrlreward.engine.sharing import locked, shared_model


class Named:
    """A model with a name."""

    def __init__(self, name: str = "") -> None:
        self.name = name


def test_two_threads_use_a_model_one_after_the_other() -> None:
    inside, most = 0, 0
    first_is_in, second_has_begun = threading.Event(), threading.Event()
    model = Named()

    def use(begun: threading.Event) -> None:
        nonlocal inside, most
        begun.set()
        with locked(model):
            inside += 1
            most = max(most, inside)
            first_is_in.set()
            second_has_begun.wait(10)
            inside -= 1

    thread = threading.Thread(target=use, args=[threading.Event()])
    thread.start()
    first_is_in.wait(10)
    use(second_has_begun)
    thread.join()
    assert (most, inside) == (1, 0)


def test_a_thread_may_enter_again_and_computes_in_the_types_of_the_weights() -> None:
    model = Named()
    with torch.autocast("cpu", dtype=torch.bfloat16), locked(model), locked(model):
        assert not torch.is_autocast_enabled("cpu")


def test_what_is_built_of_equal_arguments_is_shared_while_it_is_held() -> None:
    one = shared_model(Named, "a")
    assert shared_model(Named, "a") is one
    assert shared_model(Named, "b") is not one
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert shared_model(Named, "a").name == "a"
