"""`PolicyTuner` for the package `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import Callback, LightningModule

from ctrlreward.policy.tuner import PolicyTunerMixin, ReleaseMixin


class Release(ReleaseMixin, Callback):
    __doc__ = ReleaseMixin.__doc__


class PolicyTuner(PolicyTunerMixin, LightningModule):
    __doc__ = PolicyTunerMixin.__doc__
    releasing = Release
