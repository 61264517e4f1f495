"""Contractions on TensorE."""
