"""Training of the CTC aligners D and R (Deng et al., 2021); copy this package to change it.

`configs/alignment/*.yaml` use its classes.
"""

from ctrlreward.recipes.alignment.data import AlignmentData
from ctrlreward.recipes.alignment.pair_file import PairFile
from ctrlreward.recipes.alignment.trainers import RegressionAlignerTrainer, TokenAlignerTrainer

__all__ = ["AlignmentData", "PairFile", "RegressionAlignerTrainer", "TokenAlignerTrainer"]
