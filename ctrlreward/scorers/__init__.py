"""Scorers: a frozen model and a formula each, giving named scores of `Samples`."""

from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment
from ctrlreward.scorers.attribute import AttributeClassifier, attribute_label
from ctrlreward.scorers.base import Component, Scorer, ScoreSpec
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.distinct import Distinct
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.task import Task
from ctrlreward.scorers.transfer import TransferQuality

__all__ = [
    "Accuracy",
    "Alignment",
    "AttributeClassifier",
    "CTRLEval",
    "Component",
    "Distinct",
    "Perplexity",
    "ScoreSpec",
    "Scorer",
    "Similarity",
    "Task",
    "TransferQuality",
    "attribute_label",
]
