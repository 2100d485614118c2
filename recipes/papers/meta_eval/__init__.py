"""Agreement of scores with human ratings, beside the figures that papers report.

`ctrlreward meta-eval`, docs/meta_eval.md.
"""
