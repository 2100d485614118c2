"""The checker of examples accepts another last digit, and nothing else."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from printed_numbers import FLAGS, PrintedNumbers

THIRD, ABOVE = 1 / 3, float(np.nextafter(1, 2))
# A name: what an example shows, and what another processor or load may print.
ALIKE = {
    "elements that are not whole": ("tensor([1., nan, 0.])", torch.tensor([1 + 2e-7, np.nan, 0])),
    "rows": ("tensor([[-1., 0.],\n        [2., 3.]])", torch.tensor([[-1, -1e-7], [2 + 3e-7, 3]])),
    "numpy": ("array([ 1., nan])", np.array([ABOVE, np.nan])),
    "padding": ("array([0.6 , 0.25])", np.array([np.nextafter(0.6, 1), 0.25])),
    "exponents": ("array([0., 1.])", np.array([1e-12, ABOVE])),
    "digits of float32": ("0.33333334", 0.3333333),
    "a large number": ("6.02e+23", 6.0200001e23),
    "negative zero": ("[0.0, 1.0]", [-0.0, ABOVE]),
    "a dictionary": ("{'a': 0.5, 'b': 2}", {"a": 0.5 - 1e-16, "b": 2}),
    "digits that are left out": ("(0.333..., -0.333...)", (THIRD, -THIRD)),
    "next to a digit that is left out": ("(0.0999..., -0.0999...)", (0.1, -0.1)),
    "text that is left out": ("[0.5, ..., 'b', 1.0]", [0.5 + 1e-9, "a", "b", ABOVE]),
}
UNLIKE = {
    "a number": ("tensor([1., 0.])", torch.tensor([1, 0.0001])),
    "a digit": ("0.33333", 0.33334),
    "a rounded number": ("0.333", THIRD),
    "a sign": ("[0.5]", [-0.5]),
    "an exponent": ("1e-05", 1e-4),
    "a large number": ("6.02e+23", 6.0201e23),
    "a whole number": ("[0.5, 3]", [0.5 + 1e-9, 4]),
    "a kind of number": ("[1.0, 2.0]", [ABOVE, 2]),
    "a truth": ("1", True),
    "nan": ("array([1., nan])", np.array([ABOVE, 0])),
    "one number more": ("tensor([1., 2.])", torch.tensor([1, 2 + 3e-7, 2])),
    "one number less": ("tensor([1., 2.])", torch.tensor([1 + 2e-7])),
    "rows": ("tensor([[1., 2.]])", torch.tensor([[1 + 2e-7], [2]])),
    "a word": ("{'a': 1.0}", {"b": ABOVE}),
    "a class": ("tensor([1., 2.])", np.array([ABOVE, 2])),
    "blanks in text": ("(1.0, '[a]')", (ABOVE, "[ a]")),
    "the first digit that is left out": ("0.333...", 0.3341),
    "a digit before those left out": ("0.333...", 0.3329),
    "text beside what is left out": ("[0.5, ..., 'b']", [0.5, "a", "c"]),
    "a number beside what is left out": ("[0.5, ...]", [0.6, "a"]),
    "an address": ("'127.0.0.1 1.0'", "127.0.0.2 1.0"),
    "a version": ("'v1.0 2.0'", "v1.00 2.0"),
}


def accepts(shown: str, value: object) -> bool:
    example = doctest.Example("value", shown)
    test = doctest.DocTest([example], {"value": value}, "name", None, None, None)
    runner = doctest.DocTestRunner(PrintedNumbers(), optionflags=FLAGS)
    return runner.run(test, out=lambda text: None).failed == 0


@pytest.mark.parametrize("case", ALIKE)
def test_accepts(case: str) -> None:
    assert accepts(*ALIKE[case])


@pytest.mark.parametrize("case", UNLIKE)
def test_refuses(case: str) -> None:
    assert not accepts(*UNLIKE[case])
