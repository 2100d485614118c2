"""Agreement of scores with human ratings, beside the figures that papers report."""
