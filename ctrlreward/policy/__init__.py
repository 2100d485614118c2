"""Reinforcement learning of a language model on a `Reward`."""

from ctrlreward.policy.experience import Updates
from ctrlreward.policy.model import LoRA
from ctrlreward.policy.objectives import Objective
from ctrlreward.policy.rollouts import Generation
from ctrlreward.policy.tuner import PolicyTuner
from ctrlreward.policy.value import Critic

__all__ = ["Critic", "Generation", "LoRA", "Objective", "PolicyTuner", "Updates"]
