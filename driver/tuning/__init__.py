"""Finds the types in which a model is fastest at an error that is tolerated."""
