"""Formulas of the papers: numbers in, numbers out."""

from ctrlreward.functional.bootstrap import Estimate, paired_bootstrap
from ctrlreward.functional.calibration import label_bias
from ctrlreward.functional.diversity import distinct_by_group, distinct_n
from ctrlreward.functional.frequency import inverse_frequency
from ctrlreward.functional.pareto import non_dominated
from ctrlreward.functional.ranking import auc, paired_auc_bootstrap
from ctrlreward.functional.reproducibility import (
    compare_tables,
    correlate,
    cv_star,
    findings_upheld,
)
from ctrlreward.functional.transfer import adjusted_gm

__all__ = [
    "Estimate",
    "adjusted_gm",
    "auc",
    "compare_tables",
    "correlate",
    "cv_star",
    "distinct_by_group",
    "distinct_n",
    "findings_upheld",
    "inverse_frequency",
    "label_bias",
    "non_dominated",
    "paired_auc_bootstrap",
    "paired_bootstrap",
]
