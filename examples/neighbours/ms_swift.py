"""A plugin of ms-swift: keep the best checkpoint by scores of generated texts, and stop early.

Tried with ms-swift 4.6.0, transformers 5.19 and peft 0.20. ms-swift needs peft below 0.21, so
install with `pip install --no-deps ctrlreward`, and then what is missing.

    swift sft --external_plugins ms_swift.py --callbacks scores --template_backend jinja
        --eval_strategy steps --eval_steps 50 --save_steps 50 --load_best_model_at_end true …
    swift rlhf --rlhf_type grpo --reward_funcs total --external_plugins ms_swift.py …

`--template_backend jinja` trains on the chat template of the tokenizer, which `GenerationScorer`
reads as well.
"""

from __future__ import annotations

from typing import Any

from swift.callbacks import TrainerCallback, callbacks_map
from swift.rewards import ORM, orms

from ctrlreward import LexiconSentiment, Reward
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.huggingface import GenerationScorer, RewardCheckpoint, RewardEarlyStopping

POLARITY = LexiconSentiment()["polarity"]  # your score
PROMPTS = {"prompt": [[{"role": "user", "content": f"Review the {x}."}] for x in ("hotel", "film")]}


class Scores(TrainerCallback):
    """Adds the callbacks once the trainer is complete: ms-swift makes its own before."""

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add a scorer of held-out prompts, and the rules that read its score."""
        generation = {"max_new_tokens": 64}
        scorer = GenerationScorer(
            self.trainer, {"polarity": POLARITY}, PROMPTS, generation=generation
        )
        rules = (RewardCheckpoint("score/polarity"), RewardEarlyStopping("score/polarity"))
        for callback in (scorer, *rules):
            self.trainer.add_callback(callback)


class Total(ORM):
    """The reward of GRPO."""

    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        super().__init__(args, **kwargs)
        (self.function,) = as_reward_funcs(Reward({"polarity": POLARITY}))

    def __call__(self, completions: Any, messages: Any, **columns: Any) -> Any:
        """Return a reward per completion; the last of its messages is the completion."""
        return self.function([each[:-1] for each in messages], completions, **columns)


callbacks_map["scores"], orms["total"] = Scores, Total
