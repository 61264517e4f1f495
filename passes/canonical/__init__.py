"""The rules of the pass ``canonicalize``, by kind of op."""
