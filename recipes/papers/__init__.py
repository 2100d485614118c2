"""Reproductions of papers, a folder each; the library imports none of them."""
