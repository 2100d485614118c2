"""Processor-dependent code: oneDNN products and packed products."""
