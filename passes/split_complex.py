"""Splits every complex value into two FP32 arrays, its real and its imaginary part.

Input: an inlined module whose entry returns one array or one ``tuple`` op. Output: no c64 value but the entry's
parameters and results: each parameter is read by one ``real`` and one ``imag``, each result made by one ``complex``, so
that the signature keeps its types. Tuples that hold c64 elements (the state of loops, the operands of branches) hold
two f32 elements in the place of each.

What acts on elements apart (movement, selection, sums, gathers, sums over windows) is done once for each part;
products, quotients and functions follow ``complex_functions``; a contraction is four real ones. Reductions, windows,
scatters and sorts with any other computation become variadic, over a computation of twice as many scalars.
"""

from collections.abc import Callable, Sequence
from typing import Any

from neuronx_cc.ir import hlo
from neuronx_cc.ir.constants import is_splat
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, has_dtype, ops_of, replace, retype, values_of
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.ranges import COMBINING
from neuronx_cc.passes.analysis.values import computation_kind
from neuronx_cc.passes.expansions import complex_functions
from neuronx_cc.passes.expansions.bodies import split_parameters
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.complex_functions import Pair
from neuronx_cc.passes.manager import PassContext

C64 = "c64"
COMPLEX = frozenset([C64])
COMPONENTWISE = ("add", "second")
"""Combiners that treat the parts alike and apart: sums, and replacing the old value."""


def run(module: HloModule, context: PassContext) -> None:
    computations = list(module.computations())
    if not any(has_dtype(value.type, COMPLEX) for computation in computations for value in values_of(computation)):
        return
    splitter = Splitter(module)
    for computation in computations:
        splitter.computation(computation)


def is_complex(type_: hlo.Attribute) -> bool:
    return isinstance(type_, hlo.ArrayType) and type_.data.dtype == C64


def _half(type_: hlo.Attribute) -> hlo.Attribute:
    """The type of one part of a c64 array."""
    assert isinstance(type_, hlo.ArrayType)
    return hlo.array_type("f32", type_.data.dims)


def _flat(types: Sequence[hlo.Attribute]) -> tuple[hlo.Attribute, ...]:
    """``types`` with two f32 arrays for each c64 array."""
    found: list[hlo.Attribute] = []
    for type_ in types:
        found += [_half(type_)] * 2 if is_complex(type_) else [_split_type(type_)]
    return tuple(found)


def _split_type(type_: hlo.Attribute) -> hlo.Attribute:
    """A c64 array as a tuple of its parts; a tuple with the parts in it."""
    if isinstance(type_, hlo.TupleType):
        return hlo.tuple_type(_flat(type_.data))
    return hlo.tuple_type(_flat([type_])) if is_complex(type_) else type_


class Splitter:
    """The parts of complex values, while computations are rewritten callees first."""

    def __init__(self, module: HloModule):
        self.module = module
        self.parts: dict[Value, Pair] = {}
        self.unsplit: dict[Value, hlo.TupleType] = {}
        """Tuples whose type has changed, and what it was."""
        self.dead: list[hlo.HloOp] = []
        ops = [op for computation in module.computations() for op in ops_of(computation.block)]
        self.comparators = {name for op in ops if isinstance(op, hlo.SortOp) for name in op.to_apply.data}
        self.scalar = {name for op in ops if not isinstance(op, hlo.RegionOp) for name in called_names(op)}
        """Computations on scalars, whose parameters and results are lists of parts."""
        self.kinds = {c.computation_name: computation_kind(c) or _second(c) for c in module.computations()}

    def computation(self, computation: hlo.ComputationOp) -> None:
        ops = list(ops_of(computation.block))
        old = self._parameters(computation)
        for op in ops:
            if has_dtype(op.results[0].type, COMPLEX) or any(x in self.parts or x in self.unsplit for x in op.operands):
                self._split(op)
        self._root(computation)
        while self.dead:
            erase(self.dead.pop())
        for arg in old:
            computation.block.erase_arg(arg)

    def _parameters(self, computation: hlo.ComputationOp) -> list[Any]:
        """Parts of the parameters; returns the parameters that are to go when nothing uses them any more."""
        args = list(computation.block.args)
        if not any(has_dtype(arg.type, COMPLEX) for arg in args):
            return []
        if computation.computation_name in self.scalar:
            return self._scalar_parameters(computation)
        first = computation.block.first_op
        assert first is not None
        for index, arg in enumerate(args):
            b = Build(self.module, first, computation.parameter_loc(index))
            if is_complex(arg.type) and computation.is_entry.data:
                half = _half(arg.type)
                self.parts[arg] = b.typed(hlo.RealOp, [arg], half), b.typed(hlo.ImagOp, [arg], half)
            else:
                self._retype(arg, b)
        return []

    def _scalar_parameters(self, computation: hlo.ComputationOp) -> list[Any]:
        """Two parameters for a complex one; a comparator's come in pairs (left, right) of the same part."""
        args = list(computation.block.args)
        group = 2 if computation.computation_name in self.comparators else 1
        made = split_parameters(computation, group, lambda index: _flat([args[index].type]))
        for index, arg in enumerate(args):
            if is_complex(arg.type):
                self.parts[arg] = made[index][0], made[index][1]
            else:
                arg.replace_all_uses_with(made[index][0])
        return list(args)

    def _root(self, computation: hlo.ComputationOp) -> None:
        root, last = computation.root, computation.block.last_op
        assert last is not None
        b = Build(self.module, last, hlo.loc_of(root))
        if root in self.parts and computation.is_entry.data:
            last.operands = [self._joined(b, root)]
        elif root in self.parts:
            pair = self.parts[root]
            last.operands = [b.typed(hlo.TupleOp, pair, hlo.tuple_type(tuple(part.type for part in pair)))]

    def _joined(self, b: Build, value: Value) -> Value:
        pair = self.parts[value]
        return b.op(hlo.ComplexOp, pair, C64, hlo.shape_of(pair[0]).dims)

    def _retype(self, value: Value, b: Build) -> None:
        """``value`` becomes a tuple of parts; ``b`` inserts below it."""
        type_ = value.type
        if not has_dtype(type_, COMPLEX):
            return
        retype(value, _split_type(type_))
        if isinstance(type_, hlo.TupleType):
            self.unsplit[value] = type_
        else:
            self.parts[value] = b.element(value, 0), b.element(value, 1)

    # ops

    def _split(self, op: hlo.HloOp) -> None:
        kind = type(op)
        b = Build.before(self.module, op)
        if isinstance(op, hlo.MovementOp) or (isinstance(op, hlo.ExchangeOp) and len(op.operands) == 1):
            self._apart(b, op)
        elif isinstance(op, hlo.ReducingOp) and len(op.operands) == 1 and self.kinds[op.to_apply.data[0]] == "add":
            self._apart(b, op, to_apply=hlo.StrsAttr((b.combiner(hlo.AddOp, "f32"),)))
        elif op.opcode in complex_functions.FUNCTIONS:
            pairs = [self.parts[operand] for operand in op.operands]
            self._becomes(op, complex_functions.FUNCTIONS[op.opcode](b, *pairs))
        elif kind in COMBINING:
            self._combining(b, op)
        elif kind in RULES:
            RULES[kind](self, b, op)
        else:
            raise CompileError(
                "EVRF004",
                f"{op.opcode} on complex numbers is not supported",
                "take the parts apart (real, imag)",
                op.loc,
            )

    def _becomes(self, op: hlo.HloOp, pair: Pair) -> None:
        self.parts[op.results[0]] = pair
        self.dead.append(op)

    def _apart(self, b: Build, op: hlo.HloOp, **changed: hlo.Attribute) -> None:
        pair = [self._part(b, op, half, changed) for half in (0, 1)]
        self._becomes(op, (pair[0], pair[1]))

    def _part(self, b: Build, op: hlo.HloOp, half: int, changed: dict[str, hlo.Attribute]) -> Value:
        operands = [self.parts[operand][half] if operand in self.parts else operand for operand in op.operands]
        return b.typed(type(op), operands, _half(op.results[0].type), **{**op.properties, **changed})

    def _flat_operands(self, op: hlo.HloOp) -> list[Value]:
        return [part for operand in op.operands for part in self.parts.get(operand, (operand,))]

    def _combining(self, b: Build, op: hlo.HloOp) -> None:
        (name,) = op.to_apply.data  # type: ignore[attr-defined]
        kind = self.kinds[name]
        if is_complex(op.results[0].type) and kind in COMPONENTWISE and not isinstance(op, hlo.SortOp):
            combiner = b.combiner(hlo.AddOp, "f32") if kind == "add" else _second_f32(b)
            self._apart(b, op, to_apply=hlo.StrsAttr((combiner,)))
            return
        type_ = _split_type(op.results[0].type)
        whole = b.typed(type(op), self._flat_operands(op), type_, **op.properties)
        if is_complex(op.results[0].type):
            self._becomes(op, (b.element(whole, 0), b.element(whole, 1)))
        elif isinstance(op.results[0].type, hlo.TupleType):
            self.unsplit[whole] = op.results[0].type
            replace(op, whole)
        else:
            raise AssertionError("an op that combines complex numbers gives some")

    def _tuple(self, b: Build, op: hlo.HloOp) -> None:
        operands = self._flat_operands(op)
        entry = op.parent is self.module.entry.block and op.results[0] is self.module.entry.root
        if entry:
            op.operands = [self._joined(b, x) if x in self.parts else x for x in op.operands]
            return
        op.operands = operands
        self._retype(op.results[0], b)

    def _element(self, b: Build, op: hlo.HloOp) -> None:
        assert isinstance(op, hlo.GetTupleElementOp)
        types, index = self.unsplit[op.operand].data, op.index.data
        at = len(_flat(types[:index]))
        if is_complex(types[index]):
            self._becomes(op, (b.element(op.operand, at), b.element(op.operand, at + 1)))
            return
        op.properties["index"] = hlo.IntAttr(at)
        self._retype(op.results[0], b)

    def _region(self, b: Build, op: hlo.HloOp) -> None:
        """A loop or branch: each operand and the result is one value."""
        operands = []
        for operand in op.operands:
            pair = self.parts.get(operand)
            type_ = hlo.tuple_type(tuple(part.type for part in pair)) if pair else operand.type
            operands.append(b.typed(hlo.TupleOp, pair, type_) if pair else operand)
        op.operands = operands
        following = op.next_op
        assert following is not None
        self._retype(op.results[0], Build(self.module, following, op.loc))

    def _real(self, b: Build, op: hlo.HloOp) -> None:
        replace(op, self.parts[op.operands[0]][isinstance(op, hlo.ImagOp)])

    def _abs(self, b: Build, op: hlo.HloOp) -> None:
        replace(op, complex_functions.magnitude(b, self.parts[op.operands[0]]))

    def _compare(self, b: Build, op: hlo.HloOp) -> None:
        assert isinstance(op, hlo.CompareOp)
        z, w = (self.parts[operand] for operand in op.operands)
        direction = op.direction.data
        join = hlo.AndOp if direction == "EQ" else hlo.OrOp
        replace(op, b.each(join, *(b.compare(x, y, direction) for x, y in zip(z, w, strict=True))))

    def _convert(self, b: Build, op: hlo.HloOp) -> None:
        operand = op.operands[0]
        pair = self.parts.get(operand)
        if pair is None:
            real = b.convert(operand, "f32")
            pair = real, b.number_like(0, real)
        self._becomes(op, pair)

    def _constant(self, b: Build, op: hlo.HloOp) -> None:
        assert isinstance(op, hlo.ConstantOp)
        array = self.module.constants[op.value.data]
        if array.ndim and is_splat(array):
            number = array[(0,) * array.ndim]
            self._becomes(op, (b.number(number.real, dims=array.shape), b.number(number.imag, dims=array.shape)))
        else:
            self._becomes(op, (b.array(array.real), b.array(array.imag)))

    def _iota(self, b: Build, op: hlo.HloOp) -> None:
        assert isinstance(op, hlo.IotaOp)
        real = b.iota(op.shape.dims, op.iota_dimension.data, "f32")
        self._becomes(op, (real, b.number_like(0, real)))

    def _contraction(self, b: Build, op: hlo.HloOp) -> None:
        """Four real contractions."""
        half = _half(op.results[0].type)

        def product(left: Value, right: Value) -> Value:
            return b.typed(type(op), [left, right], half, **op.properties)

        (x, y), (u, v) = (self.parts[operand] for operand in op.operands)
        real = b.sub(product(x, u), product(y, v))
        self._becomes(op, (real, b.add(product(x, v), product(y, u))))


def _second(computation: hlo.ComputationOp) -> str:
    args = computation.block.args
    return "second" if len(args) == 2 and computation.root is args[1] else ""


def _second_f32(b: Build) -> str:
    """Name of a computation of two f32 scalars that returns the second."""
    name = "second.f32.scalar"
    if not any(computation.computation_name == name for computation in b.module.computations()):
        computation, _ = b.computation(name, [hlo.array_type("f32", ())] * 2, shared=True)
        assert computation.block.last_op is not None
        computation.block.last_op.operands = [computation.block.args[1]]
    return name


RULES: dict[type, Callable[[Splitter, Build, hlo.HloOp], None]] = {
    hlo.AbsOp: Splitter._abs,
    hlo.CompareOp: Splitter._compare,
    hlo.ComplexOp: lambda self, b, op: self._becomes(op, (op.operands[0], op.operands[1])),
    hlo.ConditionalOp: Splitter._region,
    hlo.ConstantOp: Splitter._constant,
    hlo.ConvertOp: Splitter._convert,
    hlo.ConvolutionOp: Splitter._contraction,
    hlo.DotOp: Splitter._contraction,
    hlo.GetTupleElementOp: Splitter._element,
    hlo.ImagOp: Splitter._real,
    hlo.IotaOp: Splitter._iota,
    hlo.RealOp: Splitter._real,
    hlo.TupleOp: Splitter._tuple,
    hlo.WhileOp: Splitter._region,
}
