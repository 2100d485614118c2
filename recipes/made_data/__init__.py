"""Data sets that are made, not downloaded: each module writes the files of one of them."""
