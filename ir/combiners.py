"""The operators that reductions, scatters, scans and collectives combine by."""

import numpy as np

from neuronx_cc.ir.extremes import Extreme, maximum, minimum

COMBINERS: dict[str, np.ufunc | Extreme] = {
    "add": np.add,
    "and": np.bitwise_and,
    "maximum": maximum,
    "minimum": minimum,
    "multiply": np.multiply,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""HLO opcode (of the classes ``hlo.CombinerOp``) -> the function of NumPy; all commute."""
OF_PREDICATES = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
"""Opcode of arithmetic -> what it is on pred."""
