"""Systems of Li et al. (2018): GM and preservation against their ratings, and ours beside them.

https://arxiv.org/abs/1804.06437
"""
