from .model import LoRA as LoRA
from .optimizer import OptimizerConfig as OptimizerConfig
from .pytorch_lightning import PolicyTuner as PolicyTuner
from .rollouts import Generation as Generation
