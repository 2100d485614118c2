"""Adapters that make rewards and scorers usable from other trainers: `trl`, `verl`, `openrlhf` and
`torchmetrics`; `watching` logs any reward function. None imports its trainer before use."""
