"""Systems of Li et al. (2018): GM and preservation against their ratings, compared with ours.

https://arxiv.org/abs/1804.06437, docs/style_transfer_metrics.md and docs/textual_transfer.md
"""
