"""The callbacks and the logger for the package `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import Logger

from ctrlreward.callbacks.checkpoint import RewardCheckpointMixin
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.guard import ProxyGuardMixin
from ctrlreward.callbacks.history import HistoryLoggerMixin
from ctrlreward.callbacks.pareto import ParetoCheckpointMixin
from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.callbacks.rollout_samples import RolloutSamplesMixin
from ctrlreward.callbacks.shaping import RewardShapingMixin
from ctrlreward.callbacks.stopping import RewardEarlyStoppingMixin


class BeforeAfter(BeforeAfterMixin, Callback):
    __doc__ = BeforeAfterMixin.__doc__


class GenerationScorer(GenerationScorerMixin, Callback):
    __doc__ = GenerationScorerMixin.__doc__


class HistoryLogger(HistoryLoggerMixin, Logger):
    __doc__ = HistoryLoggerMixin.__doc__


class ParetoCheckpoint(ParetoCheckpointMixin, ModelCheckpoint):
    __doc__ = ParetoCheckpointMixin.__doc__


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
