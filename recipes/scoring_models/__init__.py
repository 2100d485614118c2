"""Judges of a custom domain: classifiers, language models and word vectors."""
