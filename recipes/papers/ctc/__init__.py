"""CTC (Deng et al. 2021): training of the aligners D and R, and scores of its rated files.

https://arxiv.org/abs/2109.06379, docs/alignment.md. `configs/alignment/*.yaml` use these classes;
copy this package to change them.
"""
