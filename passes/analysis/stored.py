"""What lies in HBM as it is, for kernels to load."""

from typing import Any, TypeGuard

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import users, viewed
from neuronx_cc.ir.types import bits

VIEWS = hlo.ViewOp | hlo.IdentityOp | hlo.BitcastConvertOp
STORED = hlo.ConstantOp | hlo.DynamicSliceOp | hlo.DynamicUpdateSliceOp | hlo.ScatterOp | hlo.CollectiveOp
"""Ops that compute nothing, and those whose kernels leave their results in HBM, however small these are."""
LEFT = hlo.ConcatenateOp | hlo.GatherOp | hlo.PadOp
"""Ops whose kernels leave in HBM what they move, which may be computed just before."""
RESIDENT_VALUE_SHARE = (3, 11)
"""Of a partition of SBUF: what one value that stays on chip may fill."""
STAGED_SHARE = (7, 11)
"""The same for resident values and the operands of contractions that a loop keeps, together."""
CHUNK_EXCESS = 1.25
"""How many more chunks than necessary a contracted dim is cut into, for chunks of equal length."""
FILLED = 4
"""A result of products stays on chip if it fills one part in so many of the partitions, though after a way through HBM
all of them could be used."""


def equal_chunk(size: int, most: int) -> int:
    """Elements of equal chunks of a dim that lies on the partitions, ``most`` at most; 0 where there would be many more
    of these than of full ones.
    """
    chunk = next(count for count in range(min(size, most), 0, -1) if size % count == 0)
    return chunk if size // chunk <= CHUNK_EXCESS * -(-size // most) else 0


def is_given(value: hlo.SSAValue) -> bool:
    """Whether ``value`` is there before its computation starts: a parameter, or an element of a parameter."""
    if isinstance(value, hlo.OpResult) and isinstance(value.op, hlo.GetTupleElementOp):
        value = value.op.operand
    return not isinstance(value, hlo.OpResult)


def is_stored(value: hlo.SSAValue) -> bool:
    """Whether ``value`` is an array in HBM, or a view of one."""
    while isinstance(value.owner, VIEWS) or _names_bytes(value.owner):
        value = value.owner.operands[0]
    return is_given(value) or isinstance(value.owner, STORED)


def lies_in_hbm(value: hlo.SSAValue) -> bool:
    """Whether ``value`` is a view of an array in HBM, or is all of one that is moved there when it is made."""
    whole = viewed(value)
    return is_stored(value) or (isinstance(whole.owner, LEFT) and hlo.shape_of(whole).size == hlo.shape_of(value).size)


def _names_bytes(op: Any) -> TypeGuard[hlo.ConvertOp]:
    """Whether ``op`` gives numbers of fewer than 8 bits the type of the bytes that they are (``widen_small_types``)."""
    return isinstance(op, hlo.ConvertOp) and bits(hlo.shape_of(op.operand).dtype) < 8


def only_contractions_read(value: hlo.SSAValue) -> bool:
    """Whether contractions, and nothing else, read ``value``, perhaps through views."""
    readers = users(value)
    return bool(readers) and all(
        isinstance(reader, hlo.ContractionOp)
        or (isinstance(reader, VIEWS) and only_contractions_read(reader.results[0]))
        for reader in readers
    )
