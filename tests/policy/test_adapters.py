"""LoRA: layers to adapt, trained adapters to continue from, and the reference policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from lightning_choice import LoRA, PolicyTuner
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from tuner_records import drift, trained_weights

from ctrlreward.policy.model import load_policy, reference_policy
from ctrlreward.policy.rollouts import log_probs

IDS = torch.tensor([[2, 3, 4, 5]])


def adapted(policy: peft.PeftModel) -> set[str]:
    return {name.rpartition(".")[2] for name in policy.base_model.targeted_module_names}


@pytest.fixture
def trained(tuner: Callable[..., PolicyTuner], tmp_path: Path) -> str:
    """Folder of an adapter of rank 3 on two kinds of layers, far from its base model."""
    module = tuner(r=3, lora_alpha=5, target_modules=["q_proj", "up_proj"])
    module.configure_model()
    drift(module.policy, 1)
    module.export_adapter(tmp_path / "trained")
    return str(tmp_path / "trained")


@pytest.fixture
def continued(tuner, trained: str) -> Callable[..., PolicyTuner]:
    """Return a function that builds a tuner that starts from `trained`."""
    return lambda **changes: tuner(**{"r": None, "adapter": trained, **changes})


# A new adapter

EVERY = {f"{n}_proj" for n in ("q", "k", "v", "o", "up", "down", "gate")}


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (["mlp.up_proj"], {"up_proj"}),
        (r".*mlp\.(up|down)_proj", {"up_proj", "down_proj"}),  # as in peft, of the full name
        (None, EVERY),
    ],
)
def test_layers_to_adapt(folder: str, targets: Any, layers: set[str]) -> None:
    assert adapted(load_policy(folder, LoRA(target_modules=targets), "cpu")) == layers


@pytest.mark.parametrize("targets", [["q_proj", "q_prj"], [], "embed_tokens", ".*_head|.*q_proj"])
def test_an_unknown_layer_is_refused(folder: str, targets: Any) -> None:
    """The output layer is none of them."""
    with pytest.raises(ValueError, match="target"):
        load_policy(folder, LoRA(target_modules=targets), "cpu")


@pytest.mark.parametrize(
    "options",
    [
        {"r": 4, "lora_alpha": 3, "use_rslora": True, "rank_pattern": {"q_proj": 3}},
        {"target_modules": "all-linear", "exclude_modules": ["v_proj"], "use_dora": True},
    ],
)
def test_a_config_of_peft_is_honoured(folder: str, tmp_path: Path, tuner, options, fit) -> None:
    """The policy is the one that peft builds, and a checkpoint and an export restore it."""
    module = tuner(lora=peft.LoraConfig(**options), r=None, learning_rate=0.05)
    trainer = fit(module, 2)
    base = AutoModelForCausalLM.from_pretrained(folder)
    theirs = peft.get_peft_model(base, peft.LoraConfig(**options))
    shapes = {n: p.shape for n, p in theirs.named_parameters() if p.requires_grad}
    assert shapes == {n: p.shape for n, p in module.policy.named_parameters() if p.requires_grad}
    trainer.save_checkpoint(tmp_path / "at2.ckpt")
    again = tuner(lora=peft.LoraConfig(**options), r=None, learning_rate=0.05)
    again.configure_model()
    state = torch.load(tmp_path / "at2.ckpt", weights_only=True)["state_dict"]
    again.load_state_dict(state, strict=False)
    module.export_adapter(tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(folder)
    plain = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad():
        expected = plain(IDS).logits
        assert not torch.equal(expected, AutoModelForCausalLM.from_pretrained(folder)(IDS).logits)
        for found in (module, again):
            torch.testing.assert_close(found.policy.eval()(IDS).logits, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "pissa"},
    ],
)
def test_a_config_of_peft_that_cannot_be_honoured(tuner, options) -> None:
    with pytest.raises(ValueError, match=r"lora|[Tt]arget"):
        tuner(lora=peft.LoraConfig(**options), r=None).configure_model()


# Dropout


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_dropout_of_the_base_model_stays_off(tiny_seq2seq, family) -> None:
    policy = load_policy(tiny_seq2seq(family), LoRA(4), "cpu").train()
    published = AutoModelForSeq2SeqLM.from_pretrained(tiny_seq2seq(family))
    inputs = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[0, 4]])}
    outputs = [published.train()(**inputs).logits for _ in range(2)]
    assert not torch.equal(*outputs)  # it has some
    for _ in range(2):
        torch.testing.assert_close(policy(**inputs).logits, published.eval()(**inputs).logits)


# A trained adapter


def test_continues_from_the_trained_adapter(continued, trained: str, folder: str) -> None:
    module = continued()
    module.configure_model()
    config = module.policy.peft_config["default"]
    assert (config.r, config.lora_alpha, adapted(module.policy)) == (3, 5, {"q_proj", "up_proj"})
    plain = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), trained)
    with torch.no_grad():
        untuned = AutoModelForCausalLM.from_pretrained(folder)(IDS).logits
        expected = plain.eval()(IDS).logits
        assert (expected - untuned).abs().max() > 0.1
        torch.testing.assert_close(module.policy(IDS).logits, expected)
    trains = {n for n, p in module.named_parameters() if p.requires_grad}
    assert trains
    assert all(".default." in name and "lora_" in name for name in trains)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_reference_is_a_frozen_copy(
    continued, tuner, tiny_seq2seq, tmp_path: Path, family: str
) -> None:
    """Log-probabilities are those of a copy that plain peft loads."""
    auto, changes = AutoModelForCausalLM, {}
    if family == "t5":
        auto = AutoModelForSeq2SeqLM
        before = tuner(model=tiny_seq2seq("t5"))
        before.configure_model()
        drift(before.policy, 2)
        before.export_adapter(tmp_path / "t5")
        changes = {"model": tiny_seq2seq("t5"), "adapter": str(tmp_path / "t5")}
    module = continued(**changes)
    module.configure_model()
    drift(module.policy, 3)  # the policy has moved on
    rollout = module.rollout(["ab", "cde"])
    copy = auto.from_pretrained(module.base_model)
    copy = peft.PeftModel.from_pretrained(copy, module.lora.adapter).eval()
    with torch.no_grad():
        expected = log_probs(copy, rollout, 1.0)
        current = log_probs(module.policy, rollout, 1.0)
        with reference_policy(module.policy):
            torch.testing.assert_close(log_probs(module.policy, rollout, 1.0), expected)
        assert (current - expected).abs().max() > 0.1
        # The policy is back.
        torch.testing.assert_close(log_probs(module.policy, rollout, 1.0), current)


def test_training_moves_the_policy_and_not_the_reference(
    continued, fit, folder: str, tmp_path: Path
) -> None:
    module = continued(learning_rate=0.05)
    module.configure_model()
    rollout = module.rollout(["ab", "cd"])

    def reference() -> torch.Tensor:
        with torch.no_grad(), reference_policy(module.policy):
            return log_probs(module.policy, rollout, 1.0)

    before, start = reference(), trained_weights(module)
    trainer = fit(module, 3)
    torch.testing.assert_close(reference(), before)
    moved = trained_weights(module)
    assert all(not torch.equal(moved[name], start[name]) for name in start)

    path = str(tmp_path / "at3.ckpt")
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert set(saved) == set(start)  # neither the base model nor the reference
    again = continued(learning_rate=0.05)
    again.on_train_start = lambda: resumed.update(trained_weights(again))
    resumed: dict[str, torch.Tensor] = {}
    fit(again, 4, path)
    torch.testing.assert_close(resumed, moved, rtol=0, atol=0)
    module = again
    torch.testing.assert_close(reference(), before)

    module.export_adapter(tmp_path / "next")  # the policy, and not the reference
    files = {f.name for f in (tmp_path / "next").rglob("*") if f.is_file()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert not any(name.endswith((".bin", ".pt")) for name in files)
    last = continued(adapter=str(tmp_path / "next"))
    last.configure_model()
    torch.testing.assert_close(trained_weights(last), trained_weights(module), rtol=0, atol=0)
    config = json.loads((tmp_path / "next" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == folder


def test_only_safetensors_are_read(continued, trained: str) -> None:
    weights_file = Path(trained) / "adapter_model.safetensors"
    weights_file.rename(weights_file.with_name("adapter_model.bin"))
    for folder in (trained, "absent"):
        with pytest.raises(ValueError, match=r"adapter_model\.safetensors"):
            continued(adapter=folder).configure_model()


def lora(**options: Any) -> peft.LoraConfig:
    return peft.LoraConfig(**{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **options})


@pytest.mark.parametrize(
    "config",
    [
        lora(modules_to_save=["lm_head"]),
        lora(target_modules=["lm_head", "q_proj"]),
        peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[]),
    ],
)
def test_an_adapter_that_cannot_be_continued(
    continued, folder: str, tmp_path: Path, config: peft.PeftConfig
) -> None:
    base = AutoModelForCausalLM.from_pretrained(folder)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"adapter|lora"):
        continued(adapter=str(tmp_path / "other")).configure_model()
