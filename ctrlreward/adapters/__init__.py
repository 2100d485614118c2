"""Adapters that make rewards and scorers usable from other trainers: `trl`, `verl`, `openrlhf` and
`torchmetrics`, and `trainer_routes` for those that ask a server. None imports the trainer it serves
before it has to."""
