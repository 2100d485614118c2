"""Callbacks for the trainers of transformers and TRL: scores of generations, and decisions on them.

The callbacks of `ctrlreward.callbacks`, under the same names, for `Trainer`, `Seq2SeqTrainer` and
TRL's trainers. They decide by the same rules (`ctrlreward.selection`) on the same evidence.

    trainer = SFTTrainer(model, args=SFTConfig(eval_strategy="steps", ...), ...)
    trainer.add_callback(GenerationScorer(trainer, {"relevance": relevance}, prompts))
    trainer.add_callback(RewardCheckpoint("score/relevance"))
    trainer.add_callback(RewardEarlyStopping("score/relevance", patience=3))
    trainer.train()
"""

from ctrlreward.huggingface.before_after import BeforeAfter
from ctrlreward.huggingface.decision import (
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from ctrlreward.huggingface.generation import GenerationScorer

__all__ = [
    "BeforeAfter",
    "GenerationScorer",
    "ParetoCheckpoint",
    "ProxyGuard",
    "RewardCheckpoint",
    "RewardEarlyStopping",
]
