"""Processor- and C-library-dependent code: oneDNN products and heap trimming."""
