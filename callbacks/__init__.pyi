from ctrlreward.completion import SampleGenerator as SampleGenerator
from ctrlreward.completion import TextGenerator as TextGenerator
from ctrlreward.completion import generate as generate

from .checkpoint import RewardCheckpointMixin
from .generation import GenerationScorerMixin
from .guard import ProxyGuardMixin
from .history import HistoryLoggerMixin
from .judges import AUC as AUC
from .pareto import ParetoCheckpointMixin
from .ranges import UsefulRange as UsefulRange
from .report import BeforeAfterMixin
from .rollout_samples import RolloutSamplesMixin
from .saving import AdapterExporter as AdapterExporter
from .shaping import RewardShapingMixin
from .stopping import RewardEarlyStoppingMixin
from .terms import ReferenceReward as ReferenceReward
from .terms import SoftOverlong as SoftOverlong

# For a reader of types, a mixin has its base class of `pytorch_lightning`.
RewardCheckpoint = RewardCheckpointMixin
GenerationScorer = GenerationScorerMixin
ProxyGuard = ProxyGuardMixin
HistoryLogger = HistoryLoggerMixin
ParetoCheckpoint = ParetoCheckpointMixin
BeforeAfter = BeforeAfterMixin
RolloutSamples = RolloutSamplesMixin
RewardShaping = RewardShapingMixin
RewardEarlyStopping = RewardEarlyStoppingMixin
