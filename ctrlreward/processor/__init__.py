"""Processor- and C-library-dependent code: oneDNN products, packed products and the heap."""
