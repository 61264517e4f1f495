"""Ops of a map kernel that have no instruction of their own: another op's computes them on the way.

Whole patterns (activations, rotations of bits) are one instruction; arithmetic with a constant, or with few values a
partition, is done to an operand as it is read; casts happen as a result is written.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from copy import copy

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import Kernel, reads, trace
from neuronx_cc.codegen.maps.bits import rotation
from neuronx_cc.codegen.maps.elementwise import ACTIVATION, ARITHMETIC, IN_FP32, ROUNDED
from neuronx_cc.codegen.maps.functions import CURVED, Function, function_of
from neuronx_cc.codegen.maps.lifetimes import Member
from neuronx_cc.codegen.maps.row_reduction import sums_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import FLOATS, NARROW, WIDE_FLOATS, WORDS


class Fusion:
    """Which ops of ``kernel`` are computed inside another's instruction.

    ``stored``: values that are needed in memory. ``is_scale(operand)``: whether it has few values a partition;
    ``is_loaded(operand)``: whether it comes from outside and varies along the whole tile. ``is_cast(operand)``: whether
    the DMA may cast it as it comes from there; ``is_repeated(operand)``: besides, whether a tile repeats what comes.
    ``across``: whether rows lie across the partitions, which TensorE adds up.
    """

    def __init__(
        self,
        context: Context,
        kernel: Kernel,
        member: Member,
        stored: Container[hlo.SSAValue],
        is_scale: Callable[[hlo.SSAValue], bool],
        is_loaded: Callable[[hlo.SSAValue], bool],
        is_cast: Callable[[hlo.SSAValue], bool] = lambda _: False,
        is_repeated: Callable[[hlo.SSAValue], bool] = lambda _: False,
        across: bool = False,
    ) -> None:
        self.users: dict[hlo.HloOp, hlo.HloOp] = {}
        """Op without an instruction -> the op whose instruction computes it."""
        self.scales: dict[hlo.HloOp, int] = {}
        """Products that are computed inside an activation -> which operand is the scale."""
        self.functions: dict[hlo.HloOp, tuple[str, hlo.SSAValue]] = {}
        """Ops that end an activation of several -> its name, and what it is the function of."""
        self.casts: dict[hlo.HloOp, hlo.HloOp] = {}
        """Casts -> the op whose result they cast, and whose instruction writes it."""
        self.rounded: set[hlo.HloOp] = set()
        """Roundings that are done as what they round is converted to integers."""
        self.widened: dict[hlo.HloOp, hlo.HloOp] = {}
        """Casts of what is loaded that all readers do as they read it, or the DMA as it comes -> the last of these."""
        self.loaded: dict[hlo.SSAValue, str] = {}
        """What the DMA casts as it comes -> the type."""
        self.written: set[hlo.HloOp] = set()
        """Casts that the DMA does where it stores their results."""
        self._context, self._kernel, self._member = context, kernel, member
        self._stored, self._is_loaded, self._is_cast = stored, is_loaded, is_cast
        self._is_repeated, self._folds = is_repeated, across
        self._take_patterns()
        self._take_operands(is_scale)
        self._take_comparisons()
        self._take_rounding()
        self._take_casts()
        self._take_widening()

    def __contains__(self, op: object) -> bool:
        return op in self.users or op in self.widened

    @property
    def within(self) -> dict[hlo.HloOp, hlo.HloOp]:
        """All ops without an instruction -> the op by whose instruction they are done."""
        return {**self.users, **self.widened}

    def copy(self) -> Fusion:
        """The same, to which more is added."""
        other = copy(self)
        other.users = dict(self.users)
        return other

    def _take_patterns(self) -> None:
        order = {op: index for index, op in enumerate(self._kernel.ops)}
        curved = any(op.opcode in CURVED for op in order)
        for op in reversed(order):  # what all of a function's ops compute, rather than the first of them
            if op in self.users:
                continue
            rotated = rotation(op, self._context.splat) or ()
            if all(map(self._is_part, rotated)):
                self.users.update(dict.fromkeys(rotated, op))
            found = _softplus(op, self._context.splat)
            if curved and (found is None or not all(map(self._is_part, found.parts))):
                found = function_of(op, order, self._stored.__contains__, self._context.splat)
            if found is not None and not any(part in self.functions for part in found.parts):
                self.functions[op] = found.name, found.start
                self.users.update(dict.fromkeys(found.parts, op))

    def _take_operands(self, is_scale: Callable[[hlo.SSAValue], bool]) -> None:
        for op in self._kernel.ops:
            user = self.only_user(op)
            if user is None or len(op.sources) != 2 or op in self.users:
                continue
            arrays = [operand for operand in op.sources if self._context.splat(operand) is None]
            taken = user in self.users or user in self.users.values()
            sources = [trace(array, self._kernel, self._member) for array in arrays]
            if taken or any(isinstance(source, hlo.OpResult) and source.op in self.users for source in sources):
                continue
            if len(arrays) == 2 and _takes_scale(op, user):
                places = [place for place in (0, 1) if is_scale(op.sources[place])]
                if places:
                    self.users[op], self.scales[op] = user, places[0]
                continue
            if len(arrays) == 1 and hlo.shape_of(arrays[0]).dtype == "f32" and _deferrable(op, user):
                self.users[op] = user

    def _take_comparisons(self) -> None:
        """Comparisons that are wanted as numbers: written so, or compared as arithmetic reads the array."""
        for op in self._kernel.ops:
            made = op.sources[0].owner if isinstance(op, hlo.ConvertOp) and op.shape.dtype in FLOATS else None
            if op in self.users or not isinstance(made, hlo.CompareOp) or not self._is_part(made):
                continue
            floats = hlo.shape_of(made.lhs).dtype in FLOATS and made.comparison_type.data != "TOTALORDER"
            if not floats or all(self._context.splat(operand) is not None for operand in made.operands):
                continue
            user = self.only_user(op)
            reads = (
                user is not None
                and user.opcode in ARITHMETIC
                and op.shape.dtype == user.shape.dtype == "f32"
                and user.operands[0] is not user.operands[1]
                and trace(user.operands[0], self._kernel, self._member)
                is not trace(user.operands[1], self._kernel, self._member)
                and user not in self.users
                and user not in self.users.values()
            )
            self.users[made] = user if reads and user is not None else op
            if reads and user is not None:
                self.users[op] = user

    def _take_rounding(self) -> None:
        """Roundings ahead of a conversion to integers, which instructions round as they write them."""
        for op in self._kernel.ops:
            rounding = op.sources[0].owner if isinstance(op, hlo.ConvertOp) and op.shape.dtype in WORDS else None
            if not isinstance(rounding, hlo.RoundNearestEvenOp) or not self._is_part(rounding) or op in self.users:
                continue
            self.users[rounding] = op
            self.rounded.add(rounding)
            made = rounding.operand.owner
            if isinstance(made, hlo.HloOp) and self._writes_integers(made):
                self._cast(op, made)

    def _writes_integers(self, op: hlo.HloOp) -> bool:
        """Whether the instruction of ``op`` may write what it makes as integers, rounded once."""
        alone = op.opcode in ARITHMETIC and op.shape.dtype == "f32" and self._is_part(op) and op not in self.users
        return alone and op.sources[0] is not op.sources[-1]

    def _take_casts(self) -> None:
        for op in self._kernel.ops:
            made = self._cast_by(op)
            if made is not None and op not in self.users and op not in self.users.values():
                self._cast(op, made)

    def _cast(self, op: hlo.HloOp, made: hlo.HloOp) -> None:
        """Let the instruction of ``made`` write the result of its cast ``op``."""
        self.users.update({part: op for part, user in self.users.items() if user is made})
        self.users[made], self.casts[op] = op, made

    def fold_narrow(self) -> None:
        """Let Vector fold narrow floats as they are, where Scalar does not add up the FP32 numbers that it makes."""
        self._folds = True
        self._take_widening()

    def _take_widening(self) -> None:
        summed = {} if self._folds else sums_of(self._context, self._kernel, self._member)
        position = {op: index for index, op in enumerate(self._kernel.ops)}
        for op in self._kernel.ops:
            if not isinstance(op, hlo.ConvertOp) or op in summed or op in self or op in self.casts:
                continue
            source, readers = op.operand, [use.operation for use in op.result.uses]
            dtypes = hlo.shape_of(source).dtype, op.shape.dtype
            here = bool(readers) and all(user in position for user in readers) and op.result not in self._stored
            alone = all(use.operation is op for use in source.uses if use.operation in position)
            if dtypes in (("bf16", "f32"), ("f16", "f32")):
                there = self._is_loaded(source) or self._is_made(source)
                if here and there and all(map(self._reads_narrow, readers)):
                    self._take_into(op, max(readers, key=position.__getitem__), position)
                elif here and alone and self._is_repeated(source):
                    self.loaded[source] = "f32"
                    self._take_into(op, max(readers, key=position.__getitem__), position)
            elif dtypes in (("f32", "bf16"), ("f32", "f16")) and here and alone and self._is_cast(source):
                self.loaded[source] = dtypes[1]
                self._take_into(op, max(readers, key=position.__getitem__), position)
            read = any(use.operation in position for use in reads(op.result))  # perhaps through views
            shown = op not in self and op.result in self._stored and not read
            if shown and source.owner in position and source.owner not in self and {*dtypes} <= WIDE_FLOATS:
                self.written.add(op)

    def _reads_narrow(self, op: hlo.HloOp) -> bool:
        """Whether ``op`` computes with narrow floats as it does with FP32 ones."""
        return op.opcode in IN_FP32 or self._kernel.sums_columns(op) or (self._folds and isinstance(op, hlo.ReduceOp))

    def _take_into(self, op: hlo.ConvertOp, reader: hlo.HloOp, position: Mapping[hlo.HloOp, int]) -> None:
        """Let ``reader``, the last one, do the cast ``op``, and what that casts."""
        self.widened[op] = reader
        made = op.operand.owner
        if isinstance(made, hlo.HloOp) and made in self.widened:
            self.widened[made] = max(self.widened[made], reader, key=position.__getitem__)

    def _is_made(self, value: hlo.SSAValue) -> bool:
        """Whether an instruction of this kernel makes ``value``, one for each element of a tile."""
        made = value.owner
        here = isinstance(made, hlo.HloOp) and self._member.get(value) is self._kernel
        return here and (made not in self or made in self.widened) and not self._kernel.is_row(hlo.shape_of(value))

    def _cast_by(self, op: hlo.HloOp) -> hlo.HloOp | None:
        """What ``op`` casts, if an instruction makes it that can write the other type itself: a narrower one, or that
        of sums which read this alone, so that Scalar adds up what it makes, unrounded.
        """
        made = op.sources[0].owner if isinstance(op, hlo.ConvertOp) else None
        if not isinstance(made, hlo.HloOp) or made.opcode not in ROUNDED:
            return None
        narrows = op.shape.dtype in NARROW and made.shape.dtype == "f32"
        arrays = {each for each in made.sources if self._context.splat(each) is None}
        folded = op.shape.dtype == "f32" and made.shape.dtype in NARROW and len(arrays) == 1
        folded = folded and self._is_folded(op.results[0])
        return made if (narrows or folded) and self._is_part(made) else None

    def _is_folded(self, value: hlo.SSAValue) -> bool:
        """Whether sums of this kernel read ``value``, and nothing else."""
        readers = [use.operation for use in value.uses]
        return value not in self._stored and all(
            isinstance(each, hlo.ReduceOp) and self._member.get(each.results[0]) is self._kernel for each in readers
        )

    def only_user(self, op: hlo.HloOp) -> hlo.HloOp | None:
        """The op of the kernel that alone reads ``op``, which is not stored."""
        value = op.results[0]
        if not value.has_one_use() or value in self._stored:
            return None
        (use,) = value.uses
        user = use.operation
        if not isinstance(user, hlo.HloOp) or self._member.get(user.results[0]) is not self._kernel:
            return None
        return user

    def _is_part(self, op: hlo.HloOp) -> bool:
        """Whether ``op`` is computed here for one user."""
        value = op.results[0]
        return self._member.get(value) is self._kernel and value.has_one_use() and value not in self._stored


def _takes_scale(op: hlo.HloOp, user: hlo.HloOp) -> bool:
    """Whether ``op`` is a product that Scalar computes on the way into the activation ``user``."""
    dtypes = {hlo.shape_of(value).dtype for value in (*op.sources, op.results[0])}
    return op.opcode == "multiply" and user.opcode in ACTIVATION and dtypes == {"f32"}


def _deferrable(op: hlo.HloOp, user: hlo.HloOp) -> bool:
    """Whether ``op`` (float arithmetic with a constant) can be part of ``user``'s instruction."""
    if op.opcode not in ARITHMETIC or op.shape.dtype != "f32":
        return False
    if user.opcode in ARITHMETIC:
        return user.operands[0] is not user.operands[1]
    return op.opcode == "multiply" and user.opcode in ACTIVATION


def _softplus(op: hlo.HloOp, splat: Callable[[hlo.SSAValue], float | None]) -> Function | None:
    """``op = max(x, 0) + log1p(exp(-abs(x)))``, or the logarithm alone, as an activation; None if it is another op."""
    if op.shape.dtype not in FLOATS:
        return None
    if op.opcode == "log-plus-one":
        power = op.operands[0].owner
        return Function("softplus", power.operand, (power,)) if isinstance(power, hlo.ExponentialOp) else None
    if op.opcode != "add":
        return None
    terms = {term.opcode: term for term in (operand.owner for operand in op.sources) if isinstance(term, hlo.HloOp)}
    if terms.keys() != {"maximum", "log-plus-one"}:
        return None
    largest, logarithm = terms["maximum"], terms["log-plus-one"]
    chain = [logarithm]
    for opcode in ("exponential", "negate", "abs"):
        part = chain[-1].operands[0].owner
        if not isinstance(part, hlo.HloOp) or part.opcode != opcode:
            return None
        chain.append(part)
    start = chain[-1].operands[0]
    for value in largest.sources:  # of x or -x, whose magnitudes are the same
        signed = value.owner.operand if isinstance(value.owner, hlo.NegateOp) else value
        if start in (value, signed) and any(splat(other) == 0 for other in largest.sources):
            return Function("softplus", value, (largest, *chain))
    return None
