"""Whole weights, inside a context, of a model that FSDP splits over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed
from torch import nn


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Gather the weights of a sharded model on every rank inside the context, a collective.

    Inside it no forward pass communicates, so ranks may generate texts of different lengths. It is
    for passes without gradients, and needs the memory of the whole model on each rank. A model that
    is not sharded, or sharded on one rank, works as before.

    Args:
        model: The outermost module, with parts under FSDP2 (`fully_shard`) or FSDP1
            (`FullyShardedDataParallel`).

    Raises:
        ValueError: Weights are split by tensor parallelism.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        yield
        return
    with ExitStack() as gathered:
        gathered.enter_context(_fsdp2(model))
        gathered.enter_context(_fsdp1(model))
        gathered.enter_context(_unmarked(model))
        _check_whole(model)
        yield


@contextmanager
def _fsdp2(model: nn.Module) -> Iterator[None]:
    """Gather the parts under `fully_shard`, which keep their weights after a forward pass.

    PyTorch has a public method to set whether a part frees its weights after a forward pass, but
    none to read it; and the outermost part has to be initialized before a part inside it runs.
    Both are private names, checked with 2.11 and 2.13.
    """
    from torch.distributed.fsdp import FSDPModule

    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    try:
        states = [part._get_fsdp_state() for part in parts]
        for state in states:  # the outermost first
            state._lazy_init()
        several = all(hasattr(state, "_fsdp_param_groups") for state in states)  # not in 2.11
        groups = [
            group
            for state in states
            for group in (state._fsdp_param_groups if several else [state._fsdp_param_group])
            if group is not None
        ]
        frees = [group.post_forward_mesh_info for group in groups]
    except AttributeError as error:
        raise RuntimeError(
            f"PyTorch must be 2.11 or 2.13 under fully_shard, got {torch.__version__}: {error}"
        ) from error
    try:
        for group in groups:
            group.post_forward_mesh_info = None
        # Lightning validates in inference mode, and these tensors also serve training.
        with torch.inference_mode(False), torch.no_grad():
            for part in parts:
                part.unshard()
        yield
    finally:
        for group, after in zip(groups, frees, strict=True):
            group.post_forward_mesh_info = after
        for part in parts:
            part.reshard()


@contextmanager
def _fsdp1(model: nn.Module) -> Iterator[None]:
    """Gather the parts under `FullyShardedDataParallel`, and call the modules in them directly."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    parts = [part for part in model.modules() if isinstance(part, FullyShardedDataParallel)]
    if not parts:
        yield
        return
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        for part in parts:
            # Its own would gather the weights again, and free them.
            part.forward = part.module.__call__  # type: ignore[method-assign]
        try:
            yield
        finally:
            for part in parts:
                del part.forward


@contextmanager
def _unmarked(model: nn.Module) -> Iterator[None]:
    """Remove the mark by which `generate` of transformers keeps the ranks in step.

    Before each token it would wait for the other ranks, which may have no more texts.
    """
    mark = "_is_fsdp_managed_module"  # by both versions of FSDP
    marked = [vars(part) for part in model.modules() if mark in vars(part)]
    for attributes in marked:
        del attributes[mark]
    try:
        yield
    finally:
        for attributes in marked:
            attributes[mark] = True


def _check_whole(model: nn.Module) -> None:
    from torch.distributed.tensor import DTensor

    for name, weight in model.named_parameters():
        if isinstance(weight, DTensor) and weight.device_mesh.size() > 1:
            raise ValueError(f"{name} is split by tensor parallelism: use FSDP alone")
