"""Sorts as rows of integer words, and as networks."""
