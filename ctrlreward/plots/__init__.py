"""Figures of runs and of explained scores, and highlighted text."""
