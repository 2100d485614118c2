"""Logged values of a Weights & Biases run, read from its `.wandb` file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ctrlreward.extras import import_extra

_BLOCK = 32 * 1024
_FILE_HEADER = 7
_PIECE_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4  # kinds of pieces that end a record


def read_wandb_history(path: Path) -> list[dict[str, Any]]:
    """Read the logged values of a run, without tables and images: a dictionary per logging call.

    The file is `run-….wandb` in a folder `offline-run-…`; `_step` counts the calls.
    """
    messages = import_extra("wandb.proto.wandb_internal_pb2", str(path))
    parse_error = import_module("google.protobuf.message").DecodeError
    rows: list[dict[str, Any]] = []
    for record in records(path):
        try:
            items = messages.Record.FromString(record).history.item
            values = {tuple(i.nested_key) or (i.key,): json.loads(i.value_json) for i in items}
        except (parse_error, ValueError):
            raise ValueError(f"{path} is damaged: record {len(rows)} cannot be read") from None
        if items:
            # Tables and images are several items under one key, one of them named `_type`.
            media = {key[:-1] for key in values if len(key) > 1 and key[-1] == "_type"}
            rows.append({"/".join(k): v for k, v in values.items() if k[:-1] not in media})
    return rows


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after a file header.

    A record is split into pieces that never cross the end of a block; a remainder of a block that
    is too short for a header is padding. A killed run leaves an incomplete record at the end, which
    is skipped.
    """
    content = path.read_bytes()
    if content[:4] != b":W&B":
        raise ValueError(f"{path} is not a W&B file: it does not start with ':W&B'")
    position, record = _FILE_HEADER, b""
    while position + _PIECE_HEADER.size <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _PIECE_HEADER.size:
            position += left
            continue
        _, length, kind = _PIECE_HEADER.unpack_from(content, position)
        position += _PIECE_HEADER.size + length
        if position > len(content):
            return
        record += content[position - length : position]
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""
