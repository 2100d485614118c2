"""Families of frozen models and the task types that they score."""
