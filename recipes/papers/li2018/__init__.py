"""Systems of Li et al. (2018): GM and preservation against their ratings, compared with ours.

https://arxiv.org/abs/1804.06437, docs/scorers.md and docs/textual_transfer.md
"""
