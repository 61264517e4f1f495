"""64-bit integers in two 32-bit words: arithmetic, conversions, contractions, and the ops that combine elements."""
