"""Records of a run for later: metrics and scored samples on disk and in Weights & Biases."""
