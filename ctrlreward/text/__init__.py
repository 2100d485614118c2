"""Text processing without models: sentences, words and stop words."""

from ctrlreward.text.sentences import split_sentences

__all__ = ["split_sentences"]
