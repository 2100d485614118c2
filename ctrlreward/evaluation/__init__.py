"""Command `evaluate`: a controlled generator, measured under a fixed protocol."""
