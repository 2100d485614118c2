"""Options: in Python, in YAML and on the command line (of `pytorch_lightning`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrlreward import Reward
from ctrlreward.command_line.config_files import with_extended
from ctrlreward.jobs.training_job import build
from ctrlreward.policy import Generation, LoRA, OptimizerConfig, PolicyTuner

FILE = """
model:
  class_path: ctrlreward.policy.PolicyTuner
  init_args:
    model: smollm2-135m
    reward: {class_path: ctrlreward.recipes.controlled_generation.relevance_reward}
    aggregation: token
    beta: 0.1
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
        module = build(with_extended(["--config", str(file), *options])).model
        assert isinstance(module, PolicyTuner)
        return module

    return run


def test_options_of_a_file_and_of_the_command_line(from_file) -> None:
    module = from_file()
    assert (module.generation, module.lora) == (Generation(), LoRA())
    assert (module.baseline, module.aggregation, module.beta) == ("group", "token", 0.1)
    assert module.optimizer == OptimizerConfig(warmup_steps=3, weight_decay=0.1)
    module = from_file(
        *("--model.optimizer.learning_rate", "0.002"),
        "--model.init_args.optimizer.lr_scheduler_type=cosine",
        "--model.init_args.beta=0.5",
        "--model.scale=batch",
        "--model.generation.chat=true",
        "--model.generation.system=Be brief.",
        "--model.generation.chat_template_kwargs={enable_thinking: false}",
        "--model.lora.target_modules=[q_proj, v_proj]",
        "--model.lora.dtype=bfloat16",
    )
    assert (module.baseline, module.scale, module.beta) == ("group", "batch", 0.5)
    assert module.optimizer == OptimizerConfig(
        0.002, warmup_steps=3, weight_decay=0.1, lr_scheduler_type="cosine"
    )
    kwargs = {"enable_thinking": False}
    assert module.generation == Generation(
        chat=True, system="Be brief.", chat_template_kwargs=kwargs
    )
    assert module.lora == LoRA(target_modules=["q_proj", "v_proj"], dtype="bfloat16")


@pytest.mark.parametrize(
    "option",
    [
        *("baseline=value", "scale=gdpo", "aggregation=mean", "beta=-0.1"),
        *("optimizer.lr_scheduler_type=cos", "lora.dtype=int4"),
        *("optimizer.learning_rate=0", "generation.temperature=0", "generation.system=Be brief."),
        *("generation.eval_temperature=-1", "generation.chat_template_kwargs={a: 1}"),
        *("lora.lora_alpha=-1", "generation.num_generations=1"),
    ],
)
def test_a_bad_option_is_named(from_file, capsys, option: str) -> None:
    with pytest.raises((SystemExit, ValueError)) as error:
        from_file(f"--model.{option}")
    assert option.partition("=")[0] in capsys.readouterr().err + str(error.value)


def test_components_need_a_weighted_reward_and_the_group(share) -> None:
    for options in ({"aggregate": "min"}, {}):
        reward = Reward({"share": share["share"]}, **options)
        baseline = "group" if options else "leave_one_out"
        with pytest.raises(ValueError, match="components"):
            PolicyTuner("smollm2-135m", reward, baseline=baseline, scale="components")
