"""Textual transfer without parallel pairs: models M0 to M7 of Pang & Gimpel (2019).

https://arxiv.org/abs/1810.11878, docs/recipes.md. `configs/textual_transfer/*.yaml` use
these classes; copy this package to change them.
"""
