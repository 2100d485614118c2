"""Adapters that make rewards and scorers usable from other trainers: `trl`, `verl`, `openrlhf` and
`torchmetrics`. None imports its trainer before use."""
