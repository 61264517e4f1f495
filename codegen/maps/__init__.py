"""Elementwise ops, row reductions and scans over one iteration space."""
