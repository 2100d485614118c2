"""Callbacks, logger and `PolicyTuner` for the package `lightning.pytorch`.

The same names as in `ctrlreward.callbacks` and `ctrlreward.policy`, which are for the package
`pytorch_lightning`. Objects without a base class of Lightning are the same in both.
"""

from __future__ import annotations

from ctrlreward.extras import not_installed

try:
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import Logger
except ModuleNotFoundError as error:
    raise ImportError(not_installed("lightning", "ctrlreward.lightning")) from error

from ctrlreward.callbacks.checkpoint import RewardCheckpointMixin
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.guard import ProxyGuardMixin
from ctrlreward.callbacks.history import HistoryLoggerMixin
from ctrlreward.callbacks.judges import AUC
from ctrlreward.callbacks.pareto import ParetoCheckpointMixin
from ctrlreward.callbacks.ranges import UsefulRange
from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.callbacks.rollout_samples import RolloutSamplesMixin
from ctrlreward.callbacks.saving import AdapterExporter
from ctrlreward.callbacks.shaping import RewardShapingMixin
from ctrlreward.callbacks.stopping import RewardEarlyStoppingMixin
from ctrlreward.callbacks.terms import ReferenceReward, SoftOverlong
from ctrlreward.completion import SampleGenerator, TextGenerator, generate
from ctrlreward.policy.model import LoRA
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Generation
from ctrlreward.policy.tuner import PolicyTunerMixin

__all__ = [
    "AUC",
    "AdapterExporter",
    "BeforeAfter",
    "Generation",
    "GenerationScorer",
    "HistoryLogger",
    "LoRA",
    "OptimizerConfig",
    "ParetoCheckpoint",
    "PolicyTuner",
    "ProxyGuard",
    "ReferenceReward",
    "RewardCheckpoint",
    "RewardEarlyStopping",
    "RewardShaping",
    "RolloutSamples",
    "SampleGenerator",
    "SoftOverlong",
    "TextGenerator",
    "UsefulRange",
    "generate",
]


class BeforeAfter(BeforeAfterMixin, Callback):
    __doc__ = BeforeAfterMixin.__doc__


class GenerationScorer(GenerationScorerMixin, Callback):
    __doc__ = GenerationScorerMixin.__doc__


class HistoryLogger(HistoryLoggerMixin, Logger):
    __doc__ = HistoryLoggerMixin.__doc__


class ParetoCheckpoint(ParetoCheckpointMixin, ModelCheckpoint):
    __doc__ = ParetoCheckpointMixin.__doc__


class PolicyTuner(PolicyTunerMixin, LightningModule):
    __doc__ = PolicyTunerMixin.__doc__


class ProxyGuard(ProxyGuardMixin, Callback):
    __doc__ = ProxyGuardMixin.__doc__


class RewardCheckpoint(RewardCheckpointMixin, ModelCheckpoint):
    __doc__ = RewardCheckpointMixin.__doc__


class RewardEarlyStopping(RewardEarlyStoppingMixin, Callback):
    __doc__ = RewardEarlyStoppingMixin.__doc__


class RewardShaping(RewardShapingMixin, Callback):
    __doc__ = RewardShapingMixin.__doc__


class RolloutSamples(RolloutSamplesMixin, Callback):
    __doc__ = RolloutSamplesMixin.__doc__
