"""Corpora in shards: cut, scored by one worker or many, kept on disk, and put together."""
