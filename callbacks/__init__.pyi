# A class of ours has, for a reader of types, the base class of its mixin.
from ctrlreward.completion import SampleGenerator as SampleGenerator
from ctrlreward.completion import TextGenerator as TextGenerator
from ctrlreward.completion import generate as generate

from .checkpoint import RewardCheckpointMixin as RewardCheckpoint
from .generation import GenerationScorerMixin as GenerationScorer
from .guard import ProxyGuardMixin as ProxyGuard
from .history import HistoryLoggerMixin as HistoryLogger
from .judges import AUC as AUC
from .pareto import ParetoCheckpointMixin as ParetoCheckpoint
from .ranges import UsefulRange as UsefulRange
from .report import BeforeAfterMixin as BeforeAfter
from .rollout_samples import RolloutSamplesMixin as RolloutSamples
from .saving import AdapterExporter as AdapterExporter
from .shaping import RewardShapingMixin as RewardShaping
from .stopping import RewardEarlyStoppingMixin as RewardEarlyStopping
from .terms import ReferenceReward as ReferenceReward
from .terms import SoftOverlong as SoftOverlong
