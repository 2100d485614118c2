"""Judges of one's own domain: classifiers, language models and word vectors of its sentences."""
