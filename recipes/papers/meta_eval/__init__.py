"""Agreement of scores with human ratings, compared with the figures that papers report.

`ctrlreward meta-eval`, docs/meta_eval.md.
"""
