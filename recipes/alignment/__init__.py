"""Training of the CTC aligners D and R (Deng et al., 2021); copy this folder to change it."""

from ctrlreward.recipes.alignment.pair_file import PairFile
from ctrlreward.recipes.alignment.training import (
    AlignmentData,
    RegressionAlignerTrainer,
    TokenAlignerTrainer,
)

__all__ = ["AlignmentData", "PairFile", "RegressionAlignerTrainer", "TokenAlignerTrainer"]
