"""A second device for machines without an accelerator: `second:0` and `second:1`.

Its tensors hold theirs of the CPU and compute on it, so that results can be compared to the last
bit, and refuse to mix with tensors of any other device, scalars included. Counters stand in for
the memory of an accelerator.

Registering it renames torch's one free device for the rest of the process, and makes it torch's
accelerator. Tests therefore run on it in a process of their own: decorate them with
`on_second_device`.
"""

from __future__ import annotations

import functools
import gc
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import return_and_correct_aliasing

NAME = "second"
DEVICES = 2
CAPACITY = 2**30

_aten = torch.ops.aten
# The only ways from device to device.
_MOVES = {_aten.copy_.default, _aten._to_copy.default, _aten._copy_from.default}


# torch makes these from an empty tensor that it resizes, which a wrapper does not follow.
_FACTORIES = (
    _aten.arange.default,
    _aten.arange.start,
    _aten.arange.start_step,
    _aten.eye.default,
    _aten.linspace.default,
    _aten.randperm.default,
)


class Refused(RuntimeError):
    """Tensors of different devices in one operation."""


class _Block:
    """Storage of a tensor and its views, counted while one of them lives."""

    def __init__(self, storage: torch.UntypedStorage, device: int) -> None:
        self.storage, self.size, self.device = storage, storage.nbytes(), device
        memory.live[device] += self.size
        memory.peak[device] = max(memory.peak[device], memory.live[device])

        self._live = memory.live  # the module may be gone when the interpreter ends

    def __del__(self) -> None:
        self._live[self.device] -= self.size


class Memory:
    """Counters of the devices' memory.

    Attributes:
        live: Bytes in use, by device.
        peak: Largest number of them.
        limit: Bytes of each device; an operation that needs more raises `torch.OutOfMemoryError`.
        emptied: How often the cache of freed memory was emptied.
    """

    def __init__(self) -> None:
        self.live, self.peak = [0] * DEVICES, [0] * DEVICES
        self.limit = CAPACITY
        self.emptied = 0
        self._blocks: WeakValueDictionary[int, _Block] = WeakValueDictionary()

    def block(self, raw: torch.Tensor, device: int) -> _Block:
        """Return the block of a tensor's storage, a new one for new storage."""
        storage = raw.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            if self.live[device] + storage.nbytes() > self.limit:
                raise torch.OutOfMemoryError(
                    f"{NAME}:{device} has {self.limit - self.live[device]} bytes left, "
                    f"and {storage.nbytes()} were asked for"
                )
            block = self._blocks[storage._cdata] = _Block(storage, device)
        return block

    @contextmanager
    def limited(self, free: int, device: int = 0) -> Iterator[None]:
        """Leave so many bytes free inside the context."""
        gc.collect()
        self.limit = self.live[device] + free
        try:
            yield
        finally:
            self.limit = CAPACITY


memory = Memory()


class SecondTensor(torch.Tensor):
    """Tensor of the second device, around one of the CPU."""

    raw: torch.Tensor
    block: _Block

    @staticmethod
    def __new__(cls, raw: torch.Tensor, device: int) -> SecondTensor:
        """Wrap a tensor of the CPU."""
        block = memory.block(raw, device)
        wrapper: SecondTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, device),
        )
        wrapper.raw, wrapper.block = raw, block
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # typed there as an instance's
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute on the CPU."""
        return _run(op, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{NAME}:{self.device.index} {self.raw}"

    # torch handles the following in C++, for tensors whose data it can read.

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_moved(key, self.device))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_moved(key, self.device), value)

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        assert isinstance(value, SecondTensor)
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.raw, self.block = value.raw, value.block


def _moved(key: Any, device: torch.device) -> Any:
    """Return an index whose lists of numbers are tensors, as torch itself moves them."""
    if isinstance(key, tuple):
        return tuple(_moved(part, device) for part in key)
    return torch.tensor(key, device=device) if isinstance(key, list) else key


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a value with its tensors replaced; `tree_map` would take longer than most passes."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([_mapped(part, change) for part in value])
    if isinstance(value, dict):
        return {key: _mapped(part, change) for key, part in value.items()}
    return value


def _run(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given: list[torch.Tensor] = []

    def raw(x: torch.Tensor) -> torch.Tensor:
        given.append(x)
        return x.raw if isinstance(x, SecondTensor) else x

    args_, kwargs_ = _mapped((args, dict(kwargs)), raw)
    devices = {x.device for x in given}
    target = kwargs.get("device")
    if len(devices) > 1 and op not in _MOVES:
        raise Refused(f"{op} takes tensors of one device, given {sorted(map(str, devices))}")
    if op is _aten._fused_sdp_choice.default:
        return 0  # the formula of attention; the other choices are kernels of other devices
    if _is_composite(op):  # arrives whole in inference mode, with the device in other arguments
        return op.decompose(*args, **kwargs)
    device = torch.device(target) if target is not None else given[0].device
    if target is not None:
        kwargs_["device"] = "cpu"
    kwargs_.pop("pin_memory", None)
    result = op(*args_, **kwargs_)
    if op is _aten._to_copy.default:  # to the same device and type: a copy all the same
        result = result.clone() if result is args_[0] else result
    if device.type == NAME:
        index = device.index or 0
        # In inference mode too, a view of an ordinary tensor is an ordinary tensor.
        ordinary = _is_view(op) and not given[0].is_inference()
        with torch.inference_mode(False) if ordinary else nullcontext():
            result = _mapped(result, lambda x: SecondTensor(x, index))
    if any(isinstance(x, SecondTensor) and x.shape != x.raw.shape for x in given):
        raise NotImplementedError(f"{op} changes a shape in place, which wrappers do not follow")
    if op not in _MOVES and any(isinstance(x, SecondTensor) for x in given):
        return return_and_correct_aliasing(op, args, dict(kwargs), result)
    return args[0] if op is _aten.copy_.default else result


def _made(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(op, args, kwargs)


@functools.cache
def _is_composite(op: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    )


@functools.cache
def _is_view(op: Any) -> bool:
    aliases = [returned.alias_info for returned in op._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


class Stream:
    """Stream; operations of the CPU have no queue."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        self.device = torch.device(device or NAME)


def _emptied() -> None:
    memory.emptied += 1


def _index(device: Any) -> int:
    return torch.device(device if device is not None else NAME).index or 0


def register() -> None:
    """Register the device in this process, for good.

    The exceptions are `torch.tensor`, which reads a list in C++, and the three of `SecondTensor`.
    """
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    module = SimpleNamespace(
        Stream=Stream,
        StreamContext=nullcontext,
        current_device=lambda: 0,
        current_stream=lambda device=None: Stream(device),
        device_count=lambda: DEVICES,
        empty_cache=_emptied,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
        get_rng_state=lambda device=None: torch.get_rng_state(),
        is_available=lambda: True,
        is_initialized=lambda: True,
        manual_seed=lambda seed: None,  # the generator is the CPU's
        manual_seed_all=lambda seed: None,
        mem_get_info=lambda device=None: (memory.limit - memory.live[_index(device)], memory.limit),
        set_device=lambda device: None,
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        stream=nullcontext,
        synchronize=lambda device=None: None,
        _is_in_bad_fork=lambda: False,
    )
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    library = torch.library.Library("_", "IMPL")
    library.fallback(_made, dispatch_key="PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    for op in _FACTORIES:
        kernels.impl(op, functools.partial(_made, op), dispatch_key="PrivateUse1")
    register.libraries = library, kernels  # type: ignore[attr-defined]  # for as long as they live
    tensor = torch.tensor
    _device_constructors()  # remembers torch's own function, for `with torch.device(...)`

    def on_device(data: Any, **options: Any) -> torch.Tensor:
        device = options.pop("device", None)
        device = torch.empty(0).device if device is None else torch.device(device)
        if device.type != NAME:
            return tensor(data, device=device, **options)
        gradients = options.pop("requires_grad", False)
        there = tensor(data, device="cpu", **options).to(device)
        return there.requires_grad_(gradients)

    torch.tensor = on_device  # type: ignore[assignment]


def on_second_device(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a forked process with the device, its fixtures in this one.

    A backward pass on the device itself needs a process that never ran one: see
    `tests/policy/second_device_runs.py`.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        pytest.importorskip("torch", minversion="2.13", reason="devices in Python need torch 2.13")
        forking = get_context("fork")
        ours, theirs = forking.Pipe(duplex=False)
        child = forking.Process(target=_as_child, args=(theirs, test, args, kwargs))
        child.start()
        theirs.close()
        try:
            failure = ours.recv()
        except EOFError:
            child.join()
            failure = f"the process ended with {child.exitcode}"
        child.join()
        if failure:
            pytest.fail(failure, pytrace=False)

    return run


def _as_child(answer: Connection, test: Callable[..., None], args: Any, kwargs: Any) -> None:
    torch.set_num_threads(1)  # the threads of the parent were not forked
    gc.freeze()  # to collect the parent's objects takes a fifth of a second each time
    try:
        register()
        test(*args, **kwargs)
        failure = ""
    except BaseException:  # a failed assertion, a skip: whatever ended the test
        failure = traceback.format_exc()
    answer.send(failure)
    answer.close()
    os._exit(0)  # no clean-up of what belongs to the parent
