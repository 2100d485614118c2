"""Adapters that make rewards and scorers usable from other trainers: `trl`, `verl`, `openrlhf` and
`torchmetrics`, and `trainer_routes` for trainers that query a server. None imports its trainer
before use."""
