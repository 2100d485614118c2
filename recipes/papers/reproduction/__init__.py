"""Reproduction of controlled generation (Lorandi and Belz): its scores as data, and its tables."""
