from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
from torch.nn import Module
from transformers import AutoConfig

from ctrlreward.models.infill import load_infiller
from ctrlreward.models.seq2seq import Seq2SeqInfiller


def compiled_layers(model: Module) -> int:
    return sum(part._compiled_call_impl is not None for part in model.modules())


# In a process of its own: torch's compiler imports setuptools, whose check of distutils failed in
# the process of the whole suite.
_SCORED_TWICE = """
import sys
import numpy as np
from ctrlreward.models.causal import CausalLM, Continuation

text = [Continuation("The food", " was good. The staff was slow.")]
plain, compiled = (CausalLM(sys.argv[1], compiled=how) for how in (False, True))
(expected,), (found,) = plain.log_probs(text), compiled.log_probs(text)
np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-5)
for lm in (plain, compiled):
    print(sum(part._compiled_call_impl is not None for part in lm.model.modules()))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
def test_a_compiled_decoder_only_model_scores_the_same(tiny_causal: Callable[[str], str]) -> None:
    folder = tiny_causal("llama")
    command = [sys.executable, "-c", _SCORED_TWICE, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    layers = AutoConfig.from_pretrained(folder).num_hidden_layers
    assert done.stdout.split() == ["0", str(layers)]


def test_layers_within_layers_are_compiled_with_them(tiny_t5: str) -> None:
    infiller = load_infiller(tiny_t5, compiled=True)
    assert isinstance(infiller, Seq2SeqInfiller)
    config = infiller.model.config
    assert compiled_layers(infiller.model) == config.num_layers + config.num_decoder_layers
