"""Download of a file by HTTP: whole or absent, resumable, checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx2
import tenacity

from ctrlreward.progress import track

_MEGABYTE = 10**6
_SECONDS = 30.0  # without a byte
_ATTEMPTS = 5  # to continue a connection that broke


def download(
    name: str,
    address: str,
    path: Path,
    size: int | None = None,
    problem: Callable[[Path], str | None] = lambda path: None,
) -> None:
    """Download a file into an existing folder; it appears when it is complete and checked.

    A later call continues a partial download, `.NAME.partial`, or starts anew if the parts do not
    fit. One process at a time may do this. `problem` returns the problem of a complete file.

    Raises:
        OSError: The server can't be reached, does not have the file, or has another one. Names the
            address, the file and the folder.
    """
    partial = path.with_name(f".{path.name}.partial")
    by_hand = f"or place the file by hand: {path.name} in the folder {path.parent}"
    while True:
        resumed = partial.is_file()
        try:
            for attempt in tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(_Broken),
                stop=tenacity.stop_after_attempt(_ATTEMPTS),
                wait=tenacity.wait_exponential(0.2, max=5),
                reraise=True,
            ):
                with attempt:
                    _continue(name, address, partial, size)
        except (httpx2.HTTPError, httpx2.InvalidURL, _Broken) as error:
            cause = error.__cause__ or error
            text = f"{type(cause).__name__}: {cause}"
            if isinstance(error, httpx2.HTTPStatusError):
                text = f"HTTP {error.response.status_code} {error.response.reason_phrase}"
            raise OSError(
                f"{name} could not be downloaded from {address} ({text}). Check the connection and "
                f"the proxy, {by_hand}"
            ) from error
        wrong = problem(partial)
        if wrong is None:
            os.replace(partial, path)
            return
        partial.unlink()
        if not resumed:
            raise OSError(
                f"{name} from {address} {wrong}, so it is not the published file. Try "
                f"again, {by_hand}"
            )


class _Broken(Exception):
    """The connection ended before the end of the file."""


def _continue(name: str, address: str, partial: Path, size: int | None) -> None:
    """Append the rest to a partial file, or rewrite it if the server sends all of it."""
    start = partial.stat().st_size if partial.is_file() else 0
    if start and start == size:
        return
    # Parts are counted in bytes of the file, not of a compressed reply.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with httpx2.stream(
        "GET", address, headers=headers, follow_redirects=True, timeout=_SECONDS
    ) as reply:
        if start and reply.status_code == 416:  # range not satisfiable
            return  # complete or too long: the check decides
        reply.raise_for_status()
        if reply.headers.get("Content-Range", "").partition("-")[0] != f"bytes {start}":
            start = 0
        total = size or start + int(reply.headers.get("Content-Length", 0))
        with (
            track(f"downloading {name}", total / _MEGABYTE, "MB", start / _MEGABYTE) as advance,
            partial.open("r+b" if start else "wb") as file,
        ):
            file.seek(start)
            try:
                for part in reply.iter_raw():
                    file.write(part)
                    advance(len(part) / _MEGABYTE)
            except httpx2.TransportError as error:
                raise _Broken(str(error)) from error
            finally:
                file.truncate()
            file.flush()
            os.fsync(file.fileno())
