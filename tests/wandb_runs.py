"""Offline runs of Weights & Biases, read back from their `.wandb` files."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb
from wandb.proto import wandb_internal_pb2


@dataclass(frozen=True)
class OfflineRun:
    """Records of one folder `offline-run-<time>-<id>`."""

    folder: Path
    records: list[wandb_internal_pb2.Record]

    @property
    def start(self) -> wandb_internal_pb2.RunRecord:
        (record,) = self.of("run")
        return record

    @property
    def id(self) -> str:
        return self.start.run_id

    def of(self, kind: str) -> Iterator[Any]:
        """Yield the records of a kind: "metric", "history", "artifact", "alert", …"""
        return (getattr(r, kind) for r in self.records if r.WhichOneof("record_type") == kind)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Logged rows; a table is a mapping."""
        rows = []
        for record in self.of("history"):
            row: dict[str, Any] = {}
            for item in record.item:
                put(row, item)
            rows.append(row)
        return rows

    def curve(self, x: str, y: str) -> dict[float, float]:
        """Return the curve that the run's page draws."""
        return {row[x]: row[y] for row in self.rows if y in row}

    @property
    def definitions(self) -> dict[str, Any]:
        """Definition of each metric; globs by their pattern."""
        return {record.name or record.glob_name: record for record in self.of("metric")}

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        for record in self.of("summary"):
            for item in record.update:
                put(summary, item)
        return summary

    def table(self, row: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return `columns` and `data` of a table of a row."""
        table: dict[str, Any] = json.loads((self.folder / "files" / row[key]["path"]).read_text())
        return table


def put(into: dict[str, Any], item: Any) -> None:
    *parents, last = tuple(item.nested_key) or (item.key,)
    for parent in parents:
        into = into.setdefault(parent, {})
    into[last] = json.loads(item.value_json)


def read_runs(folder: Path) -> list[OfflineRun]:
    """Finish all runs and return those of a folder, oldest first."""
    wait_for_files(folder)
    return read_files(folder)


def wait_for_files(folder: Path) -> None:
    """End the run of this process and wandb's service; wait until a folder's runs are on disk.

    A run that is open when its service ends would log an error at each line that is printed later.

    The service may still write for a moment after `teardown`: a run that has ended has a record of
    it, and one that was killed has been the same for half a second.
    """
    wandb.finish()
    wandb.teardown()
    sizes: list[int] = []
    for _ in range(200):
        time.sleep(0.05)
        sizes.append(sum(file.stat().st_size for file in folder.glob("wandb/*/*.wandb")))
        same = next((i for i, size in enumerate(reversed(sizes)) if size != sizes[-1]), len(sizes))
        ended = all(any(run.of("exit")) for run in read_files(folder))
        if sizes[-1] > 7 and same >= (2 if ended else 10):  # a header has seven bytes
            break


BLOCK, FILE_HEADER = 32 * 1024, 7
PIECE = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, LAST = 1, 4  # kinds of pieces that end a record


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after a header; not one that is cut off.

    A record is split into pieces that never cross the end of a block; a remainder of a block that
    is too short for a header is padding.
    """
    content = path.read_bytes()
    position, record = FILE_HEADER, b""
    while position + PIECE.size <= len(content):
        left = BLOCK - position % BLOCK
        if left < PIECE.size:
            position += left
            continue
        _, length, kind = PIECE.unpack_from(content, position)
        position += PIECE.size + length
        if position > len(content):
            return
        record += content[position - length : position]
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def read_files(folder: Path) -> list[OfflineRun]:
    """Return the runs of a folder as far as they are on disk, oldest first."""
    parse = wandb_internal_pb2.Record.FromString
    files = folder.glob("wandb/offline-run-*/*.wandb")
    runs = [OfflineRun(file.parent, list(map(parse, records(file)))) for file in files]
    begun = [run for run in runs if run.records]
    return sorted(begun, key=lambda run: run.start.start_time.ToNanoseconds())
