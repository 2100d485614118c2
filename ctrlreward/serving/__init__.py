"""Rewards as a service: the server, its contract, and the client that stands for a reward."""
