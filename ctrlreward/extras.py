"""Packages that are installed with an extra only, such as `pip install 'ctrlreward[wandb]'`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXTRA_OF = {
    "datasets": "trl",
    "fastapi": "serve",
    "gguf": "gguf",
    "krippendorff": "agreement",
    "lightning": "lightning",
    "matplotlib": "papers",
    "nltk": "bleu",
    "openai": "judge",
    "pyarrow": "parquet",
    "pooch": "data",
    "prometheus_client": "serve",
    "ray": "ray",
    "sacrebleu": "bleu",
    "statsmodels": "agreement",
    "trl": "trl",
    "uvicorn": "serve",
    "vader": "lexicon",
    "wandb": "wandb",
}
"""Extra that installs each optional package."""

PURPOSES = {
    "agreement": "agreement of several raters",
    "bleu": "BLEU and METEOR of transferred sentences",
    "data": "downloads of the recipes' data sets",
    "gguf": "the built-in weights, and GGUF files",
    "judge": "judges on a server",
    "lexicon": "sentiment by a word list",
    "lightning": "trainers of the package lightning",
    "papers": "figures of the papers' scripts, and TextRank",
    "parquet": "Parquet files, and the built-in word vectors",
    "ray": "data sets and served rewards on several machines",
    "serve": "a reward over HTTP",
    "trl": "trainers of TRL",
    "wandb": "Weights & Biases",
}
"""Purpose of each extra."""


def import_extra(module: str, user: str) -> Any:
    """Import a module of an optional package of `EXTRA_OF`; errors name it and `user`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(not_installed(module, user)) from error


def not_installed(module: str, user: str) -> str:
    """Return the message for a missing package: its user and the command to install it."""
    package = module.partition(".")[0]
    return f"{user} needs {package}: pip install 'ctrlreward[{EXTRA_OF[package]}]'"
