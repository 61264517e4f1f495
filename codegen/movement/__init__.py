"""Copies: by DMA, or put in order on chip."""
