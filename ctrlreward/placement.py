"""Where scorers may run beside training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def shared_device(
    scorers: Mapping[str, Sequence[str]], kind: str, ids: Sequence[int], ranks: int
) -> str | None:
    """What is wrong where a scorer runs on one of several devices of training; None if nothing.

    On a single device a scorer may run beside training, at the price of its memory and time. With
    several, the one that it runs on would be short of memory and keep all others waiting. On the
    CPU there is nothing to keep apart.

    Args:
        scorers: Name → the devices of its models, as torch names them. `"cuda"` without a number
            is the device of the process, the first of training's.
        kind: Of training's devices: `"cuda"`, `"cpu"`, `"mps"`.
        ids: Their numbers, on this machine.
        ranks: Processes of training, on all machines.
    """
    if kind == "cpu" or max(len(ids), ranks) == 1:
        return None
    taken = [f"{kind}:{i}" for i in ids]
    for name, devices in scorers.items():
        for device in devices:
            if device == kind or device in taken:
                return (
                    f"{name} runs on {device!r}, where training runs, too: its devices are "
                    f"{', '.join(taken)}. Give the scorer device='cpu' or a device outside of "
                    f"them, such as {f'{kind}:{max(ids) + 1}'!r}, or train on fewer"
                )
    return None
