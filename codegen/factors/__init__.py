"""Factorisations of matrices that stay on chip, column by column."""
