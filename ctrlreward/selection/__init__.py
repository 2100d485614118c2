"""Decisions on logged metrics, free of any trainer."""
