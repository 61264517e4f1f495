"""Loops and branches: regions around the kernels of called computations, and where their state lies."""
