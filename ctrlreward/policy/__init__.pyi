from .model import LoRA as LoRA
from .optimizer import OptimizerConfig as OptimizerConfig
from .rollouts import Generation as Generation
from .tuner import PolicyTunerMixin

PolicyTuner = PolicyTunerMixin
