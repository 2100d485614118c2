"""Rewards and scorers as other trainers want them, a module for each: `trl`, `verl`, `openrlhf`,
`torchmetrics`. None imports the trainer it serves before it has to."""
