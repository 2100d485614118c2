"""The `.wandb` file, in which W&B keeps a run that was logged offline."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32 * 1024
_FILE_HEADER = 7
_PIECE_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4  # kinds of pieces that end a record


def read_wandb_history(path: Path) -> list[dict[str, Any]]:
    """What was logged but tables and pictures, one dictionary a step; `_step` counts them.

    Args:
        path: `run-….wandb` in a folder `offline-run-…`.

    Raises:
        ValueError: It is no such file.
        ImportError: wandb is not installed.
    """
    try:
        from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
    except ImportError as error:
        raise ImportError(f"{path} needs wandb: pip install 'ctrlreward[demo]'") from error
    rows = []
    for record in _records(path):
        items = Record.FromString(record).history.item
        if items:
            named = {tuple(i.nested_key) or (i.key,): json.loads(i.value_json) for i in items}
            rows.append(_without_media(named))
    return rows


def _without_media(items: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """Numbers alone: a table or a picture is several items under one key, `_type` among them."""
    media = {key[:-1] for key in items if len(key) > 1 and key[-1] == "_type"}
    return {"/".join(key): value for key, value in items.items() if key[:-1] not in media}


def _records(path: Path) -> Iterator[bytes]:
    """The records, put together from their pieces: LevelDB's log format behind a file header.

    A piece never crosses the end of a block, and what is too short for a header is padding. A
    run that was killed leaves an unfinished record at the end, which is left out.
    """
    content = path.read_bytes()
    if content[:4] != b":W&B":
        raise ValueError(f"{path} is no file of W&B: it does not begin with ':W&B'")
    place, record = _FILE_HEADER, b""
    while place + _PIECE_HEADER.size <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _PIECE_HEADER.size:
            place += left
            continue
        _, length, kind = _PIECE_HEADER.unpack_from(content, place)
        place += _PIECE_HEADER.size + length
        if place > len(content):
            return
        record += content[place - length : place]
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""
