"""Attention, both products and the softmax between them, as one kernel whose scores never leave the chip."""
