"""Figures of Tables 2 to 6 of Pang & Gimpel (2019), from `published_tables.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

PUBLISHED: Mapping[str, Any] = yaml.safe_load(
    files(__package__).joinpath("published_tables.yaml").read_text("utf-8")
)
