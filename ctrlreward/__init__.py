"""Reference-free scores of generated text, and training runs that act on them."""

from importlib.metadata import version

from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples

__all__ = ["Reward", "RewardBatch", "Samples"]

__version__ = version("ctrlreward")
