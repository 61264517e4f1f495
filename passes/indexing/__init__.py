"""Gathers and scatters in the forms that code generation has, chosen by estimated cost."""
