from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
from torch.nn import Module

from ctrlreward.models.causal import Continuation
from ctrlreward.models.infill import CausalInfiller, load_infiller
from ctrlreward.models.seq2seq import Seq2SeqInfiller


def compiled_layers(model: Module) -> int:
    return sum(part._compiled_call_impl is not None for part in model.modules())


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
def test_a_compiled_decoder_only_model_scores_the_same(tiny_causal: Callable[[str], str]) -> None:
    text = [Continuation("The food", " was good. The staff was slow.")]
    models = []
    for compiled in (False, True):
        infiller = load_infiller(tiny_causal("llama"), compiled=compiled)
        assert isinstance(infiller, CausalInfiller)
        models.append(infiller.lm)
    (expected,), (found,) = (lm.log_probs(text) for lm in models)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-5)
    layers = models[0].model.config.num_hidden_layers
    assert [compiled_layers(lm.model) for lm in models] == [0, layers]


def test_layers_within_layers_are_compiled_with_them(tiny_t5: str) -> None:
    infiller = load_infiller(tiny_t5, compiled=True)
    assert isinstance(infiller, Seq2SeqInfiller)
    config = infiller.model.config
    assert compiled_layers(infiller.model) == config.num_layers + config.num_decoder_layers
