"""`PolicyTuner` for the package `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import LightningModule

from ctrlreward.policy.tuner import PolicyTunerMixin


class PolicyTuner(PolicyTunerMixin, LightningModule):
    __doc__ = PolicyTunerMixin.__doc__
