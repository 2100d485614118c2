"""Held-out scores read the texts of the reward, with the generation settings of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asked_models import inputs_seen
from fakes import Scripted, left_by_killed
from trainer_runs import SAVING, tiny_trainer, train
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    Trainer,
    TrainingArguments,
)

from ctrlreward import Reward, Samples
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.huggingface import GenerationScorer, RewardCheckpoint, RewardEarlyStopping
from ctrlreward.huggingface.generation import TrainerGenerator
from ctrlreward.samples import conversation_prompt

pytestmark = pytest.mark.usefixtures("one_thread")

CHAT = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
ASKED = CHAT[:1]
TEMPLATE = (
    "{% if tools %}{{ tools[0] }}{% endif %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{% if style is defined %}{{ style }}{% endif %}"
    "{% if add_generation_prompt %}f{% endif %}"
)


def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


REWARD = Reward(lengths)
ALONE = as_reward_funcs(REWARD)
CONTINUED = as_reward_funcs(REWARD, {"prefixes": "prompt"})


# functions, prompt, what the trainer has → what the model reads, text and prompt of a score
RENDERED: dict[str, tuple[Any, Any, dict[str, Any], tuple[str, str, str]]] = {
    "a text continues": (None, "ab", {}, ("ab", "ab!", "ab")),
    "a text of a reward": (ALONE, "ab", {}, ("ab", "!", "ab")),
    "a text that the reward reads": (CONTINUED, "ab", {}, ("ab", "ab!", "ab")),
    "a reward of others": ([lengths], "ab", {}, ("ab", "!", "ab")),
    "a chat": (ALONE, ASKED, {}, ("abf", "!", "ab")),
    "a chat that the reward reads": (CONTINUED, ASKED, {}, ("abf", "ab!", "ab")),
    "a chat without a reward": (None, ASKED, {}, ("abf", "!", "ab")),
    "an answer is continued": (ALONE, CHAT, {}, ("abc", "!", conversation_prompt(CHAT))),
    "template arguments": (
        ALONE,
        ASKED,
        {"chat_template_kwargs": {"style": "e"}},
        ("abef", "!", "ab"),
    ),
    "a template of the trainer": (ALONE, ASKED, {"chat_template": "d"}, ("d", "!", "ab")),
}
# TRL renders the column `tools`, perhaps as JSON, for SFT and DPO; GRPO has tools of its own.
WITH_TOOLS: list[tuple[Any, dict[str, Any], str]] = [
    ('[{"name": 1}]', {}, "{'name': 1}abf"),
    ([], {}, "abf"),
    ([{"name": 1}], {"tools": [{"name": 2}]}, "{'name': 2}abf"),
    ([{"name": 1}], {"tools": []}, "abf"),
]


def reading(trainer: Trainer, samples: Any, **more: Any) -> TrainerGenerator:
    """Return the generator of a trainer whose tokenizer has `TEMPLATE`."""
    tokenizer: Any = trainer.processing_class
    tokenizer.chat_template = TEMPLATE
    return TrainerGenerator(
        SimpleNamespace(processing_class=tokenizer, model=None, **more), samples
    )


def test_tools_of_a_prompt_are_rendered_as_in_training(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer()
    for tools, more, expected in WITH_TOOLS:
        generator = reading(trainer, [{"prompt": ASKED, "tools": tools}], **more)
        assert generator.samples.as_prompts().prompts == (expected,)


@pytest.mark.parametrize("case", RENDERED)
def test_scores_read_what_the_reward_reads(make_trainer: Callable[..., Trainer], case: str) -> None:
    functions, prompt, more, expected = RENDERED[case]
    given = {"prompt": [prompt, prompt]}
    generator = reading(make_trainer(), given, reward_funcs=functions, **more)
    read = generator.samples.as_prompts()
    assert read.prompts is not None
    scored = generator.as_scored(read.completed(["!", "!"]))
    assert scored.prompts is not None
    assert (read.prompts[1], scored.texts[1], scored.prompts[1]) == expected
    if functions is not None and functions is not RENDERED["a reward of others"][0]:
        (function,) = functions
        _, of_reward = function.samples([prompt], ["!"], {})
        assert (of_reward.texts[0], of_reward.prompts[0]) == expected[1:]


def test_a_space_at_the_end_of_a_prompt_is_read_as_in_training(
    tiny_causal: Callable[..., str], tmp_path: Path
) -> None:
    folder = tiny_causal("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(folder),
        TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True),
        processing_class=tokenizer,
    )
    for samples, read in (
        ({"prompt": ["The food "]}, "The food "),
        (Samples(["The food "]), "The food"),
    ):
        generator = TrainerGenerator(trainer, samples, {"max_new_tokens": 2})
        assert trainer.model is not None
        with inputs_seen(trainer.model) as seen:
            found = generator.generate(generator.samples.as_prompts(), 1, 0)
        assert seen[0]["input_ids"].tolist() == [tokenizer(read).input_ids]
        assert found.prefixes == ("The food ",)


def test_an_encoder_reads_each_prompt_from_its_first_position(
    tiny_bart: str, tmp_path: Path
) -> None:
    """BART's positions count padding on the left, by which a batch would change its completions."""
    found = []
    for size in (1, 3):
        trainer = Trainer(
            AutoModelForSeq2SeqLM.from_pretrained(tiny_bart),
            TrainingArguments(
                str(tmp_path), per_device_eval_batch_size=size, report_to=[], use_cpu=True
            ),
            processing_class=AutoTokenizer.from_pretrained(tiny_bart),
        )
        prompts = ["the soup was cold and the table", "the dog", "a lake"]
        samples = Samples([""] * 3, prefixes=[""] * 3, prompts=prompts)
        generator = TrainerGenerator(trainer, samples, {"max_new_tokens": 8, "do_sample": False})
        assert trainer.model is not None
        with inputs_seen(trainer.model.get_encoder()) as seen:
            found.append(generator.generate(samples, 1, 0).texts)
        assert [row[0] for batch in seen for row in batch["attention_mask"].tolist()] == [1] * 3
    assert found[0] == found[1]


# Settings of generation

SEQ2SEQ = {"predict_with_generate": True}


@pytest.mark.parametrize(
    ("args", "trainer", "given", "expected"),
    [
        ({}, {}, None, {"max_new_tokens": 64, "max_length": None, "num_beams": 2}),
        ({"generation_max_length": 6}, {}, None, {"max_length": 6, "max_new_tokens": None}),
        ({"generation_num_beams": 3}, {}, None, {"num_beams": 3, "max_new_tokens": 64}),
        (SEQ2SEQ, {}, None, {"max_length": 9, "max_new_tokens": None}),  # as the model says
        (SEQ2SEQ, {"_gen_kwargs": {"max_length": 7}}, None, {"max_length": 7}),
        ({"generation_max_length": 6}, {}, {"max_new_tokens": 3}, {"max_new_tokens": 3}),
        ({}, {}, {"max_length": 30}, {"max_length": 30, "max_new_tokens": None}),
        ({}, {"generation_config": GenerationConfig(top_k=5)}, None, {"top_k": 5}),
        (
            {},
            {"generation_config": GenerationConfig(top_k=5, max_new_tokens=8)},
            {"temperature": 0.5},
            {"top_k": 5, "max_new_tokens": 8, "temperature": 0.5},
        ),
    ],
)
def test_generation_is_as_the_trainer_sets_it(args, trainer, given, expected) -> None:
    generator = TrainerGenerator.__new__(TrainerGenerator)
    generator.trainer = SimpleNamespace(args=SimpleNamespace(**args), **trainer)
    generator.generation = given
    model = SimpleNamespace(generation_config=GenerationConfig(num_beams=2, max_length=9))
    config = generator._config(model)
    assert {key: getattr(config, key) for key in expected} == expected
    if given == {"max_new_tokens": 3}:
        assert config.max_length is None


# Evaluations of the same weights, and after training


def scored(trainer: Trainer, **settings: Any) -> GenerationScorer:
    scores = {"a": Scripted(lambda key, step: [step / 8] * 2, trainer, "max")["a"]}
    return GenerationScorer(trainer, scores, ["ab", "cd"], generation={"max_new_tokens": 2},
                            **settings)  # fmt: skip


def files(trainer: Trainer) -> dict[str, bytes]:
    folder = Path(trainer.args.output_dir or "") / "samples" / "score"
    return {file.name: file.read_bytes() for file in folder.glob("*.jsonl")}


def test_an_evaluation_after_training_leaves_what_training_stored(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer(max_steps=2)
    train(trainer, scored(trainer))
    before, rows = files(trainer), list(trainer.state.log_history)
    assert [*sorted(before)] == ["step=000001.jsonl", "step=000002.jsonl"]
    assert trainer.evaluate()["eval_score/a"] == 0.25
    after = files(trainer)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"evaluate-step=000002.jsonl"}
    assert trainer.state.log_history[: len(rows)] == rows


def test_a_resumed_run_scores_its_checkpoint_once(
    tiny_llama: Callable[[str], str], tmp_path: Path
) -> None:
    """At every other evaluation, also if it is evaluated at the start."""
    runs = []
    for name, ends in (("whole", [4]), ("cut", [2, 4])):
        for steps in ends:
            resumes = len(ends) == 2 and steps == 4
            run = tiny_trainer(tiny_llama("abcdef"), tmp_path / name, max_steps=steps,
                               eval_on_start=resumes, **SAVING)  # fmt: skip
            run.add_callback(scored(run, every_n_evaluations=2))
            run.add_callback(RewardCheckpoint("score/a"))
            run.train(resume_from_checkpoint=resumes)
        rows = [row for row in run.state.log_history if "eval_score/a" in row]
        runs.append((files(run), [(row["step"], row["eval_score/a"]) for row in rows]))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == 2


@pytest.mark.parametrize("change", [{}, {"generation": {"max_new_tokens": 3}}])
def test_a_run_resumed_with_other_completions_has_a_new_reference(
    tiny_llama: Callable[[str], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
) -> None:
    for steps in (2, 6):
        options = {"generation": {"max_new_tokens": 2}, **(change if steps == 6 else {})}
        trainer = tiny_trainer(tiny_llama("abcdef"), tmp_path, max_steps=steps, **SAVING)
        score = Scripted(lambda _, step: [1 - step / 8] * 4, trainer, "max")["a"]
        trainer.add_callback(GenerationScorer(trainer, {"a": score}, ["ab", "cd"], **options))
        best, stop = RewardCheckpoint("score/a"), RewardEarlyStopping("score/a", patience=4)
        trainer.add_callback(best)
        trainer.add_callback(stop)
        left = left_by_killed(tmp_path / "samples" / "score" / "step=000009.jsonl")
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_text("half of")
        trainer.train(resume_from_checkpoint=steps == 6)
        assert not left.exists()
    said = [record for record in caplog.records if "measured with" in record.getMessage()]
    assert len(said) == bool(change)
    assert best.selected_step == (3 if change else 1)
    assert trainer.state.global_step == (6 if change else 5)
