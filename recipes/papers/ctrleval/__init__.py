"""CTRLEval (Ke et al. 2022): scores of its rated files, and the paper's studies of the metric.

https://aclanthology.org/2022.acl-long.164, docs/ctrleval.md
"""
