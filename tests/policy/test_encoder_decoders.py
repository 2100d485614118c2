"""Encoder-decoder policies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import peft
import pytest
import torch
from lightning_choice import LoRA, PolicyTuner, pl
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
from tuner_records import drift

from ctrlreward import Samples
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, Rollout, log_probs, sample

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.parametrize("family", ["t5", "bart"]),
]

PROMPTS = ["ab", "f", "abcdef", "ddd"] * 4
# Of each family: the end, and what the decoder starts with.
SPECIAL = {"t5": (1, 0), "bart": (2, 2)}
TRANSFER = Samples(texts=[""] * 3, prefixes=[""] * 3, prompts=["abc", "cd", "f"])


@pytest.fixture
def folder(tiny_seq2seq: Callable[[str], str], family: str) -> str:
    return tiny_seq2seq(family)


@pytest.fixture
def batch() -> Samples:
    return TRANSFER


def adapted(folder: str) -> peft.PeftModel:
    """Load a policy that differs from its base model."""
    torch.manual_seed(4)
    return drift(load_policy(folder, LoRA(4, dtype="float32"), "cpu").eval())


def merged(policy: peft.PeftModel) -> torch.nn.Module:
    """Merge the adapter into a plain model."""
    return policy.merge_and_unload().eval()


def loop(
    model: torch.nn.Module, folder: str, family: str, rollout: Rollout, temperature: float
) -> torch.Tensor:
    """Compute log-probabilities from the model's logits, one prompt and one token at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end, start = SPECIAL[family]
    new = rollout.ids[:, -rollout.mask.shape[1] :].tolist()
    result = torch.zeros(rollout.mask.shape)
    for i, row in enumerate(new):
        read = torch.tensor([tokenizer(PROMPTS[i]).input_ids])
        for t, token in enumerate(row):
            with torch.no_grad():
                before = torch.tensor([[start, *row[:t]]])
                logits = model(input_ids=read, decoder_input_ids=before).logits[0, -1]
            result[i, t] = (logits.double() / temperature).log_softmax(dim=-1)[token]
            if token == end:
                break
    return result


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_equal_a_loop_over_tokens(folder: str, family: str, temperature: float) -> None:
    policy = adapted(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(3)
    rollout = sample(policy, tokenizer, PROMPTS, Generation(max_completion_length=8), temperature)
    with torch.no_grad():
        result = log_probs(policy, rollout, temperature)
    assert len({*rollout.mask.sum(dim=1).tolist()}) > 2  # some end early
    expected = loop(merged(policy), folder, family, rollout, temperature)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_a_rollout_has_the_encoders_and_the_decoders_tokens(folder: str, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(3)
    rollout = sample(adapted(folder), tokenizer, PROMPTS, Generation(max_completion_length=8))
    new = rollout.mask.shape[1]
    end, _ = SPECIAL[family]
    for i, prompt in enumerate(PROMPTS):
        read = tokenizer(prompt).input_ids
        assert read[-1] == end
        source = rollout.ids[i, :-new]
        padding = len(source) - len(read)
        assert source.tolist() == read + [tokenizer.pad_token_id] * padding
        written = rollout.ids[i, -new:].tolist()
        length = written.index(end) + 1 if end in written else new
        assert rollout.mask[i].tolist() == [1.0] * length + [0.0] * (new - length)
        assert rollout.attention[i].tolist() == (
            [1] * len(read) + [0] * padding + [1] * length + [0] * (new - length)
        )
        assert bool(rollout.ended[i]) == (end in written)
        assert rollout.completions[i] == tokenizer.decode(
            written[:length], skip_special_tokens=True
        )


@pytest.mark.parametrize("length", [1, 2])
def test_samples_from_the_whole_distribution_despite_the_generation_config(
    folder: str, family: str, length: int
) -> None:
    """The last position, where BART's config forces the end token."""
    draws = 2000
    policy = adapted(folder)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = Generation(max_completion_length=length)
    rollout = sample(policy, tokenizer, ["ab"] * draws, options)
    end, start = SPECIAL[family]
    written = rollout.ids[:, -length:]
    first = written[:, 0].mode().values.item()
    assert first != end
    rows = written[:, 0] == first if length == 2 else torch.ones(draws, dtype=torch.bool)
    last = written[rows, -1]
    before = torch.tensor([[start] if length == 1 else [start, first]])
    with torch.no_grad():
        logits = merged(policy)(input_ids=rollout.ids[:1, :-length], decoder_input_ids=before)
    expected = logits.logits[0, -1].softmax(dim=-1)
    assert expected.max() < 0.9
    frequencies = last.bincount(minlength=len(expected)) / len(last)
    for frequency, p in zip(frequencies.tolist(), expected.tolist(), strict=True):
        assert frequency == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(last)) + 1e-3)


def test_log_probs_have_the_gradient_of_the_models_own_forward_pass(
    folder: str, family: str
) -> None:
    policy = adapted(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rollout = sample(policy, tokenizer, PROMPTS, Generation(max_completion_length=8), 0.8)
    new, (_, start) = rollout.mask.shape[1], SPECIAL[family]
    written = rollout.ids[:, -new:]
    logits = policy(
        input_ids=rollout.ids[:, :-new],
        attention_mask=rollout.attention[:, :-new],
        decoder_input_ids=torch.cat([torch.full((16, 1), start), written[:, :-1]], dim=1),
    ).logits
    values = (logits / 0.8).log_softmax(dim=-1).gather(2, written[:, :, None]).squeeze(2)
    trained = [p for p in policy.parameters() if p.requires_grad]
    expected = torch.autograd.grad((values * rollout.mask).sum(), trained)
    found = torch.autograd.grad(log_probs(policy, rollout, 0.8).sum(), trained)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_three_steps_raise_a_planted_reward_of_the_completions_alone(
    tuner: Callable[..., PolicyTuner], fit: Callable[..., pl.Trainer], share, family: str
) -> None:
    module = tuner(learning_rate=0.05, num_generations=16, beta=0.0)

    def share_of_a() -> float:
        torch.manual_seed(2)
        texts = [text for text in module.complete(["abc"] * 256) if text]
        return sum(text.count("a") / len(text) for text in texts) / len(texts)

    pl.seed_everything(0, verbose=False)
    module.configure_model()
    before = share_of_a()
    fit(module, 3)
    assert share_of_a() > before + 0.1
    texts = {text for samples in share.scored for text in samples.texts}
    assert all(len(text) <= 6 and set(text) <= set("abcdef?") for text in texts)


def test_the_exported_adapter_is_plain_peft(tuner, folder, family, tmp_path) -> None:
    """Plain peft and transformers generate the same from it."""
    module = tuner()
    module.policy = adapted(folder)
    module.tokenizer = AutoTokenizer.from_pretrained(folder)
    module.export_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["task_type"]) == (folder, "SEQ_2_SEQ_LM")
    base = AutoModelForSeq2SeqLM.from_pretrained(folder)
    end, start = SPECIAL[family]
    base.generation_config = GenerationConfig(
        eos_token_id=end, decoder_start_token_id=start, pad_token_id=module.tokenizer.pad_token_id
    )
    inputs = module.tokenizer(["abc", "fdddd"], padding=True, return_tensors="pt")

    def greedy(model: torch.nn.Module) -> list[list[int]]:
        return model.eval().generate(**inputs, do_sample=False, max_new_tokens=12).tolist()

    untuned = greedy(base)
    tuned = greedy(peft.PeftModel.from_pretrained(base, tmp_path))
    assert tuned != untuned
    options = Generation(max_completion_length=12)
    rollout = sample(module.policy, module.tokenizer, ["abc", "fdddd"], options, 0.0)
    new = rollout.mask.shape[1]
    for ours, theirs, kept in zip(rollout.ids[:, -new:], tuned, rollout.mask, strict=True):
        length = int(kept.sum())
        assert ours[:length].tolist() == theirs[1 : 1 + length]


def test_a_decoder_without_a_start_token_is_an_error(folder, family, tmp_path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.config.decoder_start_token_id = None
    model.generation_config = GenerationConfig(eos_token_id=1)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no decoder_start_token_id\. Set it in its gene"):
        load_policy(str(tmp_path), LoRA(4), "cpu")
