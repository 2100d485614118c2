"""The two packages of Lightning: `pytorch_lightning` and `lightning.pytorch`.

They have the same classes under the same names, but without a common base. So the callbacks of this
project and `PolicyTuner` are mixins that import neither, and `lazy_names` mixes them into classes
of the package that a program imports. A mixin finds names of its package with `package_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:  # the types of one package represent both
    from pytorch_lightning import Callback as Callback
    from pytorch_lightning import LightningModule as LightningModule
    from pytorch_lightning import Trainer as Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint as ModelCheckpoint
    from pytorch_lightning.loggers import Logger as Logger
    from pytorch_lightning.loggers import WandbLogger as WandbLogger
else:
    Callback = LightningModule = Logger = ModelCheckpoint = object
    Trainer = WandbLogger = object

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class LightningPackage:
    """One of the two packages."""

    name: str
    ours: str

    def load(self, path: str) -> Any:
        """Return a public name of the package: `load("callbacks.ModelCheckpoint")`."""
        module, _, attribute = path.rpartition(".")
        return getattr(import_module(f"{self.name}.{module}"), attribute)


PACKAGES = (
    LightningPackage("pytorch_lightning", "ctrlreward.callbacks"),
    LightningPackage("lightning.pytorch", "ctrlreward.lightning"),
)

# Public name → its module; of a class with a mixin also the class of Lightning to mix it into.
_NAMES: dict[str, tuple[str, ...]] = {
    "AUC": ("callbacks.judges",),
    "AdapterExporter": ("callbacks.saving",),
    "BeforeAfter": ("callbacks.report", "callbacks.Callback"),
    "Generation": ("policy.rollouts",),
    "GenerationScorer": ("callbacks.generation", "callbacks.Callback"),
    "HistoryLogger": ("callbacks.history", "loggers.Logger"),
    "LoRA": ("policy.model",),
    "OptimizerConfig": ("policy.optimizer",),
    "ParetoCheckpoint": ("callbacks.pareto", "callbacks.ModelCheckpoint"),
    "PolicyTuner": ("policy.tuner", "core.LightningModule"),
    "ProxyGuard": ("callbacks.guard", "callbacks.Callback"),
    "ReferenceReward": ("callbacks.terms",),
    "RewardCheckpoint": ("callbacks.checkpoint", "callbacks.ModelCheckpoint"),
    "RewardEarlyStopping": ("callbacks.stopping", "callbacks.Callback"),
    "RewardShaping": ("callbacks.shaping", "callbacks.Callback"),
    "RolloutSamples": ("callbacks.rollout_samples", "callbacks.Callback"),
    "SampleGenerator": ("completion",),
    "SoftOverlong": ("callbacks.terms",),
    "TextGenerator": ("completion",),
    "UsefulRange": ("callbacks.ranges",),
    "generate": ("completion",),
}


def lazy_names(
    module: str, package: LightningPackage
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module for one of the packages.

    `ctrlreward.lightning` has all names; the names of policies are apart from `callbacks`.
    """
    whole, of_policies = module == "ctrlreward.lightning", module == "ctrlreward.policy"
    names = [
        name
        for name, (place, *_) in _NAMES.items()
        if whole or place.startswith("policy.") == of_policies
    ]

    @cache  # a class exists once, and pickles by its name
    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{module} has no attribute {name!r}")
        place, *bases = _NAMES[name]
        found = import_module(f"ctrlreward.{place}")
        if not bases:
            return getattr(found, name)
        mixin = getattr(found, f"{name}Mixin")
        mixin.__init__.__qualname__ = f"{name}.__init__"  # in errors of Python
        own = {"__doc__": mixin.__doc__, "__module__": module}
        return type(name, (mixin, *map(package.load, bases)), own)

    return attribute, names.copy, names


def package_of(instance: object) -> LightningPackage:
    """Return the package of a trainer, module, callback or logger."""
    kind = type(instance)
    for base in kind.__mro__:
        for package in PACKAGES:
            if f"{base.__module__}.".startswith(f"{package.name}."):
                return package
    raise TypeError(f"{kind.__name__} must be a class of {PACKAGES[0].name} or {PACKAGES[1].name}")


def is_instance(instance: object, name: str) -> bool:
    """Return whether an object is of a class of either package, known by its name."""
    packages = tuple(f"{package.name}." for package in PACKAGES)
    bases = type(instance).__mro__
    return any(b.__name__ == name and b.__module__.startswith(packages) for b in bases)


def averaging_callbacks(trainer: Trainer) -> list[Callback]:
    """Return the `WeightAveraging` callbacks of the trainer."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [each for each in callbacks if is_instance(each, "WeightAveraging")]


def callbacks_of(trainer: Trainer, kind: type[Kind]) -> list[Kind]:
    """Return the trainer's callbacks of one class of this project."""
    return [each for each in trainer.callbacks if isinstance(each, kind)]  # type: ignore[attr-defined]


def misconfigured(instance: object, message: str) -> Exception:
    """Return a `MisconfigurationException` of an object's package, to be raised."""
    kind = package_of(instance).load("utilities.exceptions.MisconfigurationException")
    return cast("Exception", kind(message))


SHARDING = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")


def is_sharded(trainer: Trainer) -> bool:
    """Return whether the strategy splits the model or its optimizer over the ranks."""
    return any(is_instance(trainer.strategy, name) for name in SHARDING)


def check_strategy(trainer: Trainer) -> None:
    """Raise if callbacks cannot gather the model of the strategy, as they can under FSDP."""
    strategy: Any = trainer.strategy
    if is_instance(strategy, "DeepSpeedStrategy"):
        must = "must be ModelParallelStrategy (FSDP2), FSDPStrategy, or 'ddp'"
        raise misconfigured(trainer, f"strategy {must} for callbacks, got DeepSpeedStrategy")
    if is_instance(strategy, "ModelParallelStrategy"):
        split = strategy.device_mesh["tensor_parallel"].size()
        if split > 1:
            must = "tensor_parallel_size must be 1 for callbacks, which need whole layers"
            raise misconfigured(trainer, f"{must}, got {split}")


def check_whole_model(trainer: Trainer) -> None:
    """Raise unless every rank has the whole model, as a `PolicyTuner` needs."""
    if is_sharded(trainer):
        found = type(trainer.strategy).__name__
        raise misconfigured(
            trainer,
            f"strategy must be 'ddp' for PolicyTuner, which needs the whole model, got {found}; "
            "under FSDP, use a trainer of TRL with the callbacks of ctrlreward.huggingface",
        )
