"""Processor- and C-library-dependent code: oneDNN products, packed products and heap trimming."""
