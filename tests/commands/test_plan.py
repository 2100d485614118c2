"""`ctrlreward plan` against real models: what they hold, allocate, read and compute."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from ctrlreward import BARTScore, CTRLEval, Perplexity, Reward, Samples, Similarity
from ctrlreward.cli import main
from ctrlreward.commands.plan import card_here
from ctrlreward.commands.planned_step import StepPlan
from ctrlreward.engine import batching
from ctrlreward.models.causal import CausalLM
from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig, PolicyTuner
from ctrlreward.policy.model import load_policy, reference_policy
from ctrlreward.policy.rollouts import Rollout, policy_output
from ctrlreward.processor import onednn

LETTERS = " abcdefghijklmnopqrstuvwxyzT.,:A"
PREFIXES = ["Tea is", "The soup", "A long walk", "My room"]
NEW = 40


def prompts() -> Samples:
    labels = ["positive", "negative"] * 2
    given = [f"A {label} text: {prefix}" for prefix, label in zip(PREFIXES, labels, strict=True)]
    return Samples(PREFIXES, prompts=given, prefixes=PREFIXES, labels=labels, sources=PREFIXES)


def planned(model: str, reward: Any = len, **options: Any) -> StepPlan:
    generation = Generation(num_generations=4, max_completion_length=NEW)
    reward = (
        Reward({"length": lambda texts: [len(text) for text in texts]}) if reward is len else reward
    )
    tuner = PolicyTuner(model, reward, Objective(beta=0.1), generation, **options)
    loader: Any = DataLoader([prompts()], batch_size=None)  # type: ignore[arg-type]
    data = SimpleNamespace(setup=lambda stage: None, train_dataloader=lambda: loader)
    return StepPlan(tuner, data, [], "cpu", None)


@pytest.fixture
def models(
    tiny_llama: Callable[[str], str], tiny_causal: Callable[..., str], tiny_bart: str, tiny_t5: str
) -> dict[str, str]:
    return {
        "llama": tiny_llama(LETTERS),
        "gpt2": tiny_causal("gpt2"),
        "gemma2": tiny_causal("gemma2"),
        "bart": tiny_bart,
        "t5": tiny_t5,
    }


FAMILIES = ("llama", "gpt2", "gemma2", "bart", "t5")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [LoRA(r=4), LoRA(r=2, dtype="bfloat16")], ids=["float32", "16"])
def test_parameters_and_bytes_are_the_loaded_models(
    family: str, lora: LoRA, models: dict[str, str]
) -> None:
    plan = planned(models[family], lora=lora)
    real = load_policy(models[family], lora, "cpu")
    of_base = [p for name, p in real.named_parameters() if "lora_" not in name]
    (said,) = plan.described()
    assert said["trained"] == sum(p.numel() for p in real.parameters() if p.requires_grad)
    assert said["parameters"] == sum(p.numel() for p in of_base)
    buffers = sum(b.numel() * b.element_size() for b in real.buffers())
    assert said["bytes"] == buffers + sum(p.numel() * p.element_size() for p in of_base)


def test_parameters_of_smollm2_are_the_published_ones() -> None:
    """134,515,008 according to its model card on the hub."""
    plan = planned("smollm2-135m", lora=LoRA(r=16))
    assert plan.described()[0]["parameters"] == 134_515_008
    # r (in + out) of q, k, v, o, gate, up and down, in 30 layers of width 576 and 1536.
    sides = [(576, 576), (576, 192), (576, 192), (576, 576), *[(576, 1536)] * 2, (1536, 576)]
    assert plan.trained == 30 * sum(16 * (a + b) for a, b in sides)


def full_rollout(plan: StepPlan, policy: Any) -> Rollout:
    """Return a rollout as the plan assumes it: all completions whole, a prompt with padding."""
    ids = torch.ones(plan.rows, plan.prompt_tokens + NEW, dtype=torch.long)
    mask, attention = torch.ones(plan.rows, NEW), ids.clone()
    attention[0, plan.prompt_tokens - 1 if policy.config.is_encoder_decoder else 0] = 0
    return Rollout([""] * plan.rows, ids, attention, mask, torch.ones(plan.rows).bool())


def allocated(work: Callable[[], None]) -> int:
    """Return the largest number of bytes that PyTorch's allocator had given out at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    live = peak = 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_activations_of_an_update_are_what_the_allocator_gives_out(
    family: str, checkpointing: bool, models: dict[str, str], one_thread: None
) -> None:
    optimizer = OptimizerConfig(gradient_checkpointing=checkpointing)
    plan = planned(models[family], lora=LoRA(r=4), optimizer=optimizer)
    said = plan.phases()["update"]
    tuner = plan.tuner
    tuner.configure_model()
    rollout, policy = full_rollout(plan, tuner.policy), tuner.policy.train()

    def update() -> None:
        policy_output(policy, rollout, 1.0).log_probs.sum().backward()

    real = allocated(update)
    gradients = 4 * plan.trained
    assert real - gradients == pytest.approx(said.peak - gradients, rel=0.15), (real, said.peak)


def without_attention_kernel(model: nn.Module) -> None:
    """Let attention run as plain products; `set_attn_implementation` does not reach all layers."""
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None:
            config._attn_implementation = "eager"


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_are_those_of_the_real_passes(
    family: str, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The counter does not know products by oneDNN and the CPU's kernel of attention.
    monkeypatch.setattr(onednn, "_mkl_lacks_avx512", lambda: False)
    plan = planned(models[family], lora=LoRA(r=4))
    said = plan.phases()
    tuner = plan.tuner
    tuner.configure_model()
    has_kernel = tuner.policy.config._attn_implementation != "eager"
    without_attention_kernel(tuner.policy)
    rollout = full_rollout(plan, tuner.policy)
    counted = FlopCounterMode(display=False)
    with counted as reference, torch.no_grad(), reference_policy(tuner.policy):
        policy_output(tuner.policy.eval(), rollout, 1.0)
    with FlopCounterMode(display=False) as update:
        policy_output(tuner.policy.train(), rollout, 1.0).log_probs.sum().backward()
    assert said["log-probabilities"].flops == pytest.approx(reference.get_total_flops(), rel=0.01)
    # The kernel computes the first product of attention again in the backward pass.
    again = reference.get_flop_counts()["Global"][torch.ops.aten.bmm] / 2
    again *= has_kernel  # no kernel has the soft cap of Gemma 2
    assert said["update"].flops == pytest.approx(update.get_total_flops() + again, rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_has_the_bytes_of_a_real_one(family: str, models: dict[str, str]) -> None:
    plan = planned(models[family], lora=LoRA(r=4))
    plan.phases()
    policy: Any = load_policy(models[family], LoRA(r=4), "cpu").eval()
    mask = torch.ones(plan.rows, plan.prompt_tokens, dtype=torch.long)
    steps = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    result = policy.generate(
        input_ids=mask, attention_mask=mask, return_dict_in_generate=True, **steps
    )
    cache = result.past_key_values
    halves = [
        getattr(cache, f"{name}_cache", None) for name in ("self_attention", "cross_attention")
    ]
    tensors = [
        t for half in halves or () if half for at in half.layers for t in (at.keys, at.values)
    ]
    if halves == [None, None]:
        tensors = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    assert plan.cache_bytes == pytest.approx(sum(t.nbytes for t in tensors), rel=0.01)


def test_tokens_of_the_reward_are_those_that_its_models_read(
    models: dict[str, str], small: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the shapes of the inputs of real models, which score the same texts."""
    encoder = small["minilm-l6"]

    def build() -> Reward:
        relevance = CTRLEval(models["llama"], evaluators=4)
        return Reward(
            {
                "relevance": relevance["attribute_relevance"],
                "fluency": Perplexity(models["llama"])["log_likelihood"],
                "content": Similarity(encoder)["similarity"],
            }
        )

    plan = planned(models["llama"], build(), lora=LoRA(r=4))
    plan.phases()
    said = {model.name: model.tokens for model in plan.models}
    read = dict.fromkeys(said, 0)
    reward = build()
    reward.load()
    loaded = {
        models["llama"]: reward.components["fluency"].scorer.loaded_model,  # type: ignore[attr-defined]
        encoder: reward.components["content"].scorer.loaded_model,  # type: ignore[attr-defined]
    }
    for name, model in loaded.items():

        def count(layer: Any, args: Any, kwargs: Any, name: str = name) -> None:
            read[name] += kwargs["input_ids"].numel()

        model.model.register_forward_pre_hook(count, with_kwargs=True)
    reward(plan.samples)
    assert all(read.values())
    assert said == pytest.approx(read, rel=0.02)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bart", "t5"])
def test_operations_of_the_reward_are_those_of_its_models(
    family: str, models: dict[str, str], small: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "_mkl_lacks_avx512", lambda: False)
    folder = models[family]

    def build() -> Reward:
        parts = {"relevance": CTRLEval(folder, evaluators=8)["attribute_relevance"]}
        if family in ("bart", "t5"):
            parts["faithfulness"] = BARTScore(folder, "faithfulness")["faithfulness"]
        return Reward(parts | {"content": Similarity(small["minilm-l6"])["similarity"]})

    plan = planned(models["llama"], build(), lora=LoRA(r=4))
    said = plan.phases()["reward"]
    reward = build()
    reward.load()
    for component in reward.components.values():
        loaded: Any = component.scorer.loaded_model  # type: ignore[attr-defined]
        without_attention_kernel(getattr(loaded, "lm", loaded).model)
    with FlopCounterMode(display=False) as counted:
        reward(plan.samples)
    assert said.flops == pytest.approx(counted.get_total_flops(), rel=0.2)
    assert 0 < said.host < 10


def write_job(folder: Path, model: str, **generation: int) -> Path:
    file = folder / "job.yaml"
    file.write_text(f"""
model:
  class_path: ctrlreward.policy.PolicyTuner
  init_args:
    model: {model}
    reward:
      class_path: ctrlreward.recipes.controlled_generation.relevance_reward
      init_args: {{model: {model}, evaluators: 4}}
    generation: {json.dumps({"num_generations": 4, "max_completion_length": 8} | generation)}
    lora: {{r: 4}}
data:
  class_path: ctrlreward.recipes.controlled_generation.PromptData
  init_args:
    labels: [negative, positive]
    template: "A {{label}} text: {{prefix}}"
    prefixes: [Tea is, The soup]
    batch_size: &batch 2
trainer: {{accelerator: cpu, devices: 1, max_steps: 2}}
""")
    return file


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, str]) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    return write_job(tmp_path, models["llama"])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["plan", *arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_options_extended_files_and_hardware_count(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = as_json(capsys, str(job))
    assert plain["step"] | {"cache_bytes": 0, "prompt_tokens": 0} == {
        "prompts": 2,
        "prompt_tokens": 0,
        "completions": 8,
        "completion_tokens": 8,
        "cache_bytes": 0,
    }
    assert plain["devices"].keys() == {"cpu"}
    Path("more.yaml").write_text("extends: job.yaml\nanchors: {batch: 4}\n")
    larger = as_json(capsys, "more.yaml", "--hardware", "h100")
    assert larger["step"]["completions"] == 16
    assert larger["devices"].keys() == {"cuda:0"}
    assert {each["dtype"] for each in larger["models"]} == {"bfloat16"}
    assert any("trainer.accelerator = cpu" in note for note in larger["notes"])
    reward = "--model.init_args.reward.init_args.device=cuda:1"
    apart = as_json(capsys, str(job), "--hardware=h100", reward)
    assert apart["devices"].keys() == {"cuda:0", "cuda:1"}
    assert sorted(Path().iterdir()) == [Path("job.yaml"), Path("more.yaml")]  # nothing is written


def test_a_logger_that_is_not_installed_is_not_needed(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    logger = "{class_path: pytorch_lightning.loggers.WandbLogger}"
    report = f"{{class_path: ctrlreward.callbacks.WandbReport, init_args: {{logger: {logger}}}}}"
    Path("logged.yaml").write_text(
        f"extends: job.yaml\ntrainer: {{logger: {logger}, callbacks: [{report}]}}\n"
    )
    assert as_json(capsys, "logged.yaml")["step"]["completions"] == 8


@pytest.mark.parametrize(
    ("name", "gigabytes", "known"),
    [
        ("NVIDIA A100-SXM4-40GB", 42, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 85, "a100"),
        ("NVIDIA GeForce RTX 4090", 25, "rtx4090"),
        ("NVIDIA L4", 24, "l4"),
        ("NVIDIA L40S", 48, "h100"),
        ("NVIDIA H200", 150, "h200"),
    ],
)
def test_cards_are_known_by_the_name_of_the_driver(
    name: str, gigabytes: int, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, gigabytes * 10**9))
    assert card_here() == known


def test_the_tables_have_each_phase_and_each_model(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", str(job)])
    text = capsys.readouterr().out
    for word in ("policy:", "scorer:", "sampling", "reward", "update", "step", "24 GB"):
        assert word in text
    assert "Estimated" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job.yaml", "--hardware", "h10"], "got 'h10' (did you mean 'h100'?)"),
        (["jop.yaml"], "there is no file jop.yaml"),
        (["sentiment_smollm2"], "ctrlreward recipes copy sentiment_smollm2"),
        ([], "the configuration is missing: ctrlreward plan"),
        (["job.yaml", "--data.init_args.batchsize=3"], "batch_size"),
        (["reward.yaml"], "components is not a key"),
        (["classifier.yaml"], "is a TextCNNTrainer, must be a PolicyTuner"),
        (["job.yaml", "--model.init_args.model=org/absent"], "hf download"),
    ],
)
def test_mistakes_are_one_line(
    job: Path, arguments: list[str], message: str, fails: Callable[..., str]
) -> None:
    Path("reward.yaml").write_text("components: {a: Distinct}\n")
    Path("classifier.yaml").write_text("""
model:
  class_path: ctrlreward.recipes.scoring_models.text_cnn.TextCNNTrainer
  init_args: {folder: model}
""")
    said = fails("plan", *arguments)
    assert message in said
    assert "Traceback" not in said


def test_without_a_plan_models_are_loaded(models: dict[str, str]) -> None:
    """A plan leaves no stand-in behind."""
    planned(models["llama"], Reward({"f": Perplexity(models["llama"])["log_likelihood"]})).phases()
    scorer = Perplexity(models["llama"])
    assert type(scorer.loaded_model) is CausalLM
    assert scorer.loaded_model.batch_tokens == batching._CPU_TOKENS
