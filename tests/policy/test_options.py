"""The groups of options: in Python, in YAML and on the command line (of `pytorch_lightning`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ctrlreward import Distinct, Reward
from ctrlreward.jobs.training_job import build
from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig, PolicyTuner

FILE = """
model:
  class_path: ctrlreward.policy.PolicyTuner
  init_args:
    model: smollm2-135m
    reward: {class_path: ctrlreward.recipes.controlled_generation.relevance_reward}
    objective: {algorithm: dapo, beta: 0.1}
    optimizer: {warmup_steps: 3, weight_decay: 0.1}
"""


@pytest.fixture
def from_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Builds the module of `FILE` with some options; loads nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restores it after the command line sets it
    file = tmp_path / "train.yaml"
    file.write_text(FILE)

    def run(*options: str) -> PolicyTuner:
        module = build(["--config", str(file), *options]).model
        assert isinstance(module, PolicyTuner)
        return module

    return run


def test_groups_and_options_that_are_left_out_have_their_defaults(from_file) -> None:
    module = from_file()
    assert module.generation == Generation()
    assert module.lora == LoRA()
    assert module.objective == Objective("dapo", beta=0.1)
    assert module.optimizer == OptimizerConfig(warmup_steps=3, weight_decay=0.1)


@pytest.mark.parametrize("prefix", ["--model", "--model.init_args"])
def test_the_command_line_overrides_single_options(from_file, prefix: str) -> None:
    module = from_file(
        *(f"{prefix}.optimizer.learning_rate", "0.002"),
        f"{prefix}.objective.beta=0.5",
        f"{prefix}.generation.stop=!",
        f"{prefix}.lora.r=4",
    )
    assert module.optimizer == OptimizerConfig(0.002, warmup_steps=3, weight_decay=0.1)
    assert module.objective == Objective("dapo", beta=0.5)
    assert module.beta == 0.5
    assert module.generation == Generation(stop="!")
    assert module.lora == LoRA(r=4)


def test_options_of_the_model_and_its_optimizer(from_file) -> None:
    module = from_file(
        "--model.generation.chat=true",
        "--model.generation.system=Be brief.",
        "--model.generation.chat_template_kwargs={enable_thinking: false}",
        "--model.lora.target_modules=[q_proj, v_proj]",
        "--model.lora.quantization=nf4",
        "--model.optimizer.lr_scheduler_type=cosine",
        "--model.optimizer.gradient_checkpointing=true",
        "--model.objective.reference=base",
    )
    assert module.generation == Generation(
        chat=True, system="Be brief.", chat_template_kwargs={"enable_thinking": False}
    )
    assert module.lora == LoRA(target_modules=["q_proj", "v_proj"], quantization="nf4")
    assert module.optimizer == OptimizerConfig(
        warmup_steps=3, weight_decay=0.1, lr_scheduler_type="cosine", gradient_checkpointing=True
    )
    assert module.objective.reference == "base"
    assert from_file("--model.lora.target_modules=q_proj").lora == LoRA(target_modules="q_proj")
    assert from_file("--model.lora.adapter=runs/first").lora == LoRA(adapter="runs/first")


@pytest.mark.parametrize(
    "option",
    [
        *("objective.algorithm=trpo", "optimizer.lr_scheduler_type=cos", "lora.quantization=int4"),
        *("optimizer.learning_rate=0", "generation.temperature=0", "generation.system=Be brief."),
        *("generation.top_p=0", "generation.top_k=-1", "generation.min_p=2", "lora.r=0"),
        *("generation.eval_temperature=-1", "generation.chat_template_kwargs={a: 1}"),
        *("lora.lora_alpha=-1", "lora.lora_dropout=1.0"),
    ],
)
def test_a_bad_option_is_named(from_file, capsys, option: str) -> None:
    with pytest.raises((SystemExit, ValueError)) as error:
        from_file(f"--model.{option}")
    assert option.partition("=")[0] in capsys.readouterr().err + str(error.value)


def test_groups_in_python(share) -> None:
    reward = Reward({"share": share["share"]})
    assert PolicyTuner("smollm2-135m", reward).objective == Objective("grpo")
    warm_up = OptimizerConfig(warmup_steps=9)
    module = PolicyTuner("smollm2-135m", reward, Objective("rloo"), optimizer=warm_up)
    assert module.objective.parts.baseline == "leave_one_out"
    assert module.optimizer is warm_up
    with pytest.raises(TypeError, match="epochs"):
        PolicyTuner("smollm2-135m", reward, epochs=2)


def test_a_loaded_model_is_refused(tiny_causal) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_causal("gpt2"))
    with pytest.raises(TypeError, match="model"):
        PolicyTuner(model, Reward({"length": Distinct()["distinct_1"]}))


def test_a_reward_is_made_of_what_it_takes() -> None:
    def length(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    for given in (length, {"length": length}, [length], Reward(length)):
        assert list(PolicyTuner("smollm2-135m", given).reward.components) == ["length"]
