"""Algorithms as plain ops, for the passes that expand whole operators."""
