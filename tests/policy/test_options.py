"""The groups of options: in Python, in YAML and on the command line (of `pytorch_lightning`)."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ctrlreward import Distinct, Reward
from ctrlreward.jobs.training_job import build
from ctrlreward.policy import (
    Critic,
    Generation,
    LoRA,
    Objective,
    OptimizerConfig,
    PolicyTuner,
    tuner,
)

FILE = """
model:
  class_path: ctrlreward.policy.PolicyTuner
  init_args:
    model: smollm2-135m
    reward: {class_path: ctrlreward.recipes.controlled_generation.relevance_reward}
    objective: {algorithm: dapo, clip: [0.1, 0.3]}
    optimizer: {minibatches: 3, max_grad_norm: 1.0}
    critic: {clip: null}
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
    assert module.objective == Objective("dapo", clip=(0.1, 0.3))
    assert module.optimizer == OptimizerConfig(minibatches=3, max_grad_norm=1.0)
    assert module.critic == Critic(clip=None)


@pytest.mark.parametrize("prefix", ["--model", "--model.init_args"])
def test_the_command_line_overrides_single_options(from_file, prefix: str) -> None:
    module = from_file(
        *(f"{prefix}.optimizer.num_iterations", "2"),
        f"{prefix}.objective.beta=0.5",
        f"{prefix}.generation.stop=!",
        f"{prefix}.lora.r=4",
    )
    assert module.optimizer == OptimizerConfig(num_iterations=2, minibatches=3, max_grad_norm=1.0)
    assert module.objective == Objective("dapo", clip=(0.1, 0.3), beta=0.5)
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
        minibatches=3, max_grad_norm=1.0, lr_scheduler_type="cosine", gradient_checkpointing=True
    )
    assert module.objective.reference == "base"
    assert from_file("--model.lora.target_modules=q_proj").lora == LoRA(target_modules="q_proj")
    assert from_file("--model.lora.adapter=runs/first").lora == LoRA(adapter="runs/first")


def test_choices_are_checked_together_not_one_by_one(from_file) -> None:
    module = from_file("--model.objective.baseline=batch", "--model.objective.scale=none")
    assert module.objective.choices.scale == "none"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("objective.algorithm=trpo", "must be one of grpo, "),
        ("optimizer.lr_scheduler_type=cos", "must be one of constant, "),
        ("optimizer.learning_rate=0", "optimizer.learning_rate must be positive, got 0.0"),
        ("generation.temperature=0", "generation.temperature must be positive, got 0.0"),
        ("generation.top_p=0", "generation.top_p must be in (0, 1]"),
        ("generation.top_k=-1", "generation.top_k must be 0 (all tokens) or more, got -1"),
        ("generation.min_p=2", "generation.min_p must be in [0, 1], got 2.0"),
    ],
)
def test_a_bad_option_is_named(from_file, capsys, option: str, message: str) -> None:
    with pytest.raises((SystemExit, ValueError)) as error:
        from_file(f"--model.{option}")
    assert message in capsys.readouterr().err + str(error.value)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Critic, {"gamma": 1.5}, r"critic.gamma must be in \[0, 1\], got 1.5"),
        (Critic, {"gae_lambda": -0.1}, r"critic.gae_lambda must be in \[0, 1\], got -0.1"),
        (Critic, {"coef": -1.0}, "critic.coef must be 0 or more, got -1.0"),
        (Critic, {"clip": 0.0}, "critic.clip must be positive, got 0.0"),
        (LoRA, {"r": 0}, "lora.r must be positive, got 0"),
        (LoRA, {"lora_alpha": -1}, "lora.lora_alpha must be positive, got -1"),
        (LoRA, {"lora_dropout": 1.0}, r"lora.lora_dropout must be in \[0, 1\), got 1.0"),
        (LoRA, {"quantization": "int4"}, "lora.quantization must be one of nf4, int8"),
        (OptimizerConfig, {"num_iterations": 0}, "optimizer.num_iterations must be positive, got"),
        (OptimizerConfig, {"minibatches": -1}, "optimizer.minibatches must be positive, got"),
        (OptimizerConfig, {"microbatch_size": 0}, "optimizer.microbatch_size must be positive, "),
        (OptimizerConfig, {"max_grad_norm": 0.0}, "optimizer.max_grad_norm must be positive, got"),
        (OptimizerConfig, {"lr_scheduler_type": "cosin"}, "did you mean 'cosine'"),
        (Generation, {"eval_temperature": -1}, "eval_temperature must be 0 or more, got -1"),
        (Generation, {"system": "Be brief."}, r"is part of a chat\. Set generation\.chat to True"),
        (Generation, {"chat_template_kwargs": {"a": 1}}, r"chat_template_kwargs = .* of a chat\."),
    ],
)
def test_a_bad_value_is_an_error(kind, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_groups_in_python(share) -> None:
    reward = Reward({"share": share["share"]})
    assert PolicyTuner("smollm2-135m", reward).objective == Objective("grpo")
    warm_up = OptimizerConfig(warmup_steps=9)
    module = PolicyTuner("smollm2-135m", reward, Objective("rloo"), optimizer=warm_up)
    assert module.objective.choices.baseline == "leave_one_out"
    assert module.optimizer is warm_up
    assert module.automatic_optimization  # the optimizer's settings do not change this
    with pytest.raises(TypeError, match="epochs"):
        PolicyTuner("smollm2-135m", reward, epochs=2)
    for model, told in (
        ("./typo", "neither a folder nor a *"),
        ("smolm2-135m", "'smollm2"),
    ):
        with pytest.raises(ValueError, match=f"model = '{model}' is .*{re.escape(told)}"):
            PolicyTuner(model, reward)


@pytest.mark.parametrize("group", tuner.GROUPS)
def test_an_option_without_its_group_is_told_the_group(group: str) -> None:
    kind = tuner.GROUPS[group]
    for field in fields(kind):
        line = f"{group}={kind.__name__}({field.name}=...)"
        with pytest.raises(TypeError) as error:
            PolicyTuner("smollm2-135m", "reward", **{field.name: 1})
        problem = f"PolicyTuner() has no argument {field.name!r}. Use "
        assert str(error.value).startswith(problem)
        assert line in str(error.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kl_coef", "objective=Objective(beta=...)"),
        ("epsilon_high", "objective=Objective(clip=(epsilon, epsilon_high))"),
        ("max_new_tokens", "generation=Generation(max_completion_length=...)"),
        ("epochs", "optimizer=OptimizerConfig(num_iterations=...)"),
        ("rank", "lora=LoRA(r=...)"),
        ("use_dora", "PolicyTuner(lora=LoraConfig(use_dora=...)) of peft"),
        ("updates", "optimizer=OptimizerConfig(...)"),
        ("reward_funcs", "reward=Reward(...)"),
        ("peft_config", "lora=LoraConfig(...)"),
        ("train_dataset", "trainer.fit(tuner, DataLoader(train_dataset, batch_size=8))"),
        ("tokenizer", "model, whose folder has its tokenizer"),
    ],
)
def test_keywords_of_others_are_told_ours(name: str, line: str) -> None:
    with pytest.raises(TypeError) as error:
        PolicyTuner("smollm2-135m", "reward", **{name: 1})
    assert str(error.value) == f"PolicyTuner() has no argument {name!r}. Use {line}."


def test_all_lines_name_options_that_exist() -> None:
    for kind in tuner.GROUPS.values():
        options = {field.name for field in fields(kind)}
        for name, line in kind.__init__.our_names.items():
            if line.startswith("PolicyTuner("):  # an option of peft
                continue
            assert line.partition("=")[0] in options, name
            with pytest.raises(TypeError, match=re.escape(f"no argument {name!r}. Use {line}")):
                kind(**{name: 1})


def test_a_loaded_model_is_refused(tiny_causal) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_causal("gpt2"))
    with pytest.raises(TypeError, match=r"^model must be a folder, .*, got a loaded GPT2LMHeadM"):
        PolicyTuner(model, Reward({"length": Distinct()["distinct_1"]}))


def test_a_reward_is_made_of_what_it_takes() -> None:
    def length(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    for given in (length, {"length": length}, [length], Reward(length)):
        assert list(PolicyTuner("smollm2-135m", given).reward.components) == ["length"]
