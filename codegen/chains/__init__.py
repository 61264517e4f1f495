"""Contractions, what is made of their results, and contractions of that, in one kernel: gradients of attention"""
