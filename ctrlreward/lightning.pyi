from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from ctrlreward.callbacks import AUC as AUC
from ctrlreward.callbacks import AdapterExporter as AdapterExporter
from ctrlreward.callbacks import ReferenceReward as ReferenceReward
from ctrlreward.callbacks import SampleGenerator as SampleGenerator
from ctrlreward.callbacks import SoftOverlong as SoftOverlong
from ctrlreward.callbacks import TextGenerator as TextGenerator
from ctrlreward.callbacks import UsefulRange as UsefulRange
from ctrlreward.callbacks import generate as generate
from ctrlreward.callbacks.checkpoint import RewardCheckpointMixin
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.guard import ProxyGuardMixin
from ctrlreward.callbacks.history import HistoryLoggerMixin
from ctrlreward.callbacks.pareto import ParetoCheckpointMixin
from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.callbacks.rollout_samples import RolloutSamplesMixin
from ctrlreward.callbacks.shaping import RewardShapingMixin
from ctrlreward.callbacks.stopping import RewardEarlyStoppingMixin
from ctrlreward.policy import Generation as Generation
from ctrlreward.policy import LoRA as LoRA
from ctrlreward.policy import OptimizerConfig as OptimizerConfig
from ctrlreward.policy.tuner import PolicyTunerMixin

class BeforeAfter(BeforeAfterMixin, Callback): ...
class GenerationScorer(GenerationScorerMixin, Callback): ...
class HistoryLogger(HistoryLoggerMixin, Logger): ...
class ParetoCheckpoint(ParetoCheckpointMixin, ModelCheckpoint): ...
class PolicyTuner(PolicyTunerMixin, LightningModule): ...
class ProxyGuard(ProxyGuardMixin, Callback): ...
class RewardCheckpoint(RewardCheckpointMixin, ModelCheckpoint): ...
class RewardEarlyStopping(RewardEarlyStoppingMixin, Callback): ...
class RewardShaping(RewardShapingMixin, Callback): ...
class RolloutSamples(RolloutSamplesMixin, Callback): ...
