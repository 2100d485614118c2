"""Lightning callbacks that let a training run act on scores."""

# Imported from the repository root under its folder's name, every class would exist twice.
if __name__ == "callbacks":
    raise ImportError("there is no package 'callbacks': import ctrlreward.callbacks instead")

from ctrlreward.callbacks.checkpoint import RewardCheckpoint
from ctrlreward.callbacks.completion import TextGenerator, generate
from ctrlreward.callbacks.generation import GenerationScorer
from ctrlreward.callbacks.guard import ProxyGuard
from ctrlreward.callbacks.history import HistoryLogger
from ctrlreward.callbacks.pareto import ParetoCheckpoint
from ctrlreward.callbacks.report import BeforeAfter
from ctrlreward.callbacks.rollout_samples import RolloutSamples
from ctrlreward.callbacks.saving import AdapterExporter
from ctrlreward.callbacks.shaping import RewardShaping
from ctrlreward.callbacks.stopping import RewardEarlyStopping
from ctrlreward.callbacks.terms import LengthWindow, Potential, SoftOverlong

__all__ = [
    "AdapterExporter",
    "BeforeAfter",
    "GenerationScorer",
    "HistoryLogger",
    "LengthWindow",
    "ParetoCheckpoint",
    "Potential",
    "ProxyGuard",
    "RewardCheckpoint",
    "RewardEarlyStopping",
    "RewardShaping",
    "RolloutSamples",
    "SoftOverlong",
    "TextGenerator",
    "generate",
]
