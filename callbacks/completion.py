"""Names of `ctrlreward.completion` for `__init__.pyi`, which names modules of this folder."""

from ctrlreward.completion import SampleGenerator, TextGenerator, generate

__all__ = ["SampleGenerator", "TextGenerator", "generate"]
