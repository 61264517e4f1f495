"""Reductions that no map takes, windows, and running folds."""
