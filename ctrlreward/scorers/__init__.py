"""Scorers: frozen models and formulas that turn `Samples` into named scores."""

from ctrlreward.failures import Failures, ItemError
from ctrlreward.samples import attribute_label
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment
from ctrlreward.scorers.attribute import AttributeClassifier
from ctrlreward.scorers.bartscore import BARTScore
from ctrlreward.scorers.base import Component, CompositeScorer, Scored, Scorer, ScoreSpec
from ctrlreward.scorers.components import ComponentLike, FunctionScorer
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.distinct import Distinct, Repetition
from ctrlreward.scorers.judge import Judge
from ctrlreward.scorers.lexicon import LexiconSentiment
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.remote_reward_model import RemoteRewardModel
from ctrlreward.scorers.reward_model import RewardModel
from ctrlreward.scorers.rubric import Criterion, Rubric
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.task import Task
from ctrlreward.scorers.transfer import TransferQuality

__all__ = [
    "Accuracy",
    "Alignment",
    "AttributeClassifier",
    "BARTScore",
    "CTRLEval",
    "Component",
    "ComponentLike",
    "CompositeScorer",
    "Criterion",
    "Distinct",
    "Failures",
    "FunctionScorer",
    "ItemError",
    "Judge",
    "LexiconSentiment",
    "ModelOptions",
    "ModelScorer",
    "Perplexity",
    "RemoteRewardModel",
    "Repetition",
    "RewardModel",
    "Rubric",
    "ScoreSpec",
    "Scored",
    "Scorer",
    "Similarity",
    "Task",
    "TransferQuality",
    "attribute_label",
]
