"""LLaMA-Factory with scores of generated texts: keep the best checkpoint, and stop early.

Tried with LLaMA-Factory 0.9.5, transformers 5.6 and peft 0.18.1, which are older than the versions
that our tests run with: install with `pip install --no-deps ctrlreward`, and then what is missing.
Start this file in place of `llamafactory-cli train`, with the same YAML:

    python llama_factory.py sft.yaml

Leave `template` out of the YAML, so that it trains on the chat template of the tokenizer, which
`GenerationScorer` reads as well.
"""

from __future__ import annotations

from typing import Any

from llamafactory.train.sft import workflow
from llamafactory.train.tuner import run_exp

from ctrlreward import LexiconSentiment
from ctrlreward.huggingface import GenerationScorer, RewardCheckpoint, RewardEarlyStopping

SCORES = {"polarity": LexiconSentiment()["polarity"]}  # your scores
PROMPTS = {"prompt": [[{"role": "user", "content": f"Review the {x}."}] for x in ("hotel", "film")]}


class Scored(workflow.CustomSeq2SeqTrainer):
    """LLaMA-Factory's trainer with our callbacks, since it takes none that know the trainer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        generation = {"max_new_tokens": 64}
        self.add_callback(GenerationScorer(self, SCORES, PROMPTS, generation=generation))
        self.add_callback(RewardCheckpoint("score/polarity"))
        self.add_callback(RewardEarlyStopping("score/polarity"))


if __name__ == "__main__":
    workflow.CustomSeq2SeqTrainer = Scored
    run_exp()
