"""PyTorch: exported programs, ``trace`` and the ``torch.compile`` backend, lowered through one table of operators.

A graph of ATen operators (``torch.export`` or AOT autograd, decomposed by torch as far as it has no row here) is
interpreted on JAX's tracers and lowered to StableHLO. ``neuronx_cc.torch`` is the public face.
"""
