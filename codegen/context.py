"""Where every HLO value lives while kernels are emitted: parameters, constants, results, on-chip residents.

A value has *homes*: views of buffers that hold it. A resident home lies in SBUF; an HBM home is made on
demand. Views (reshape, transpose, ...) of a value are derived from its homes; when no view can express
them the operand is copied to a dense array first.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from math import prod

import numpy as np

from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.control.recovery import Recovery
from neuronx_cc.codegen.dots.scales import Scaled
from neuronx_cc.codegen.dots.table import Listed
from neuronx_cc.codegen.dots.watch import Watch
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Builder
from neuronx_cc.codegen.emission.fixed import Fixed
from neuronx_cc.codegen.emission.views import View, coalesce, factors, linear, outermost
from neuronx_cc.codegen.formation.combiners import simple_combiners
from neuronx_cc.codegen.formation.graph import base, elements, is_load_cast, is_view
from neuronx_cc.codegen.left import Left, State
from neuronx_cc.codegen.movement.fill import fill, repeats_one
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.codegen.residents import PARTS, Residents
from neuronx_cc.codegen.view_ops import apply_view, as_stored, seen_by
from neuronx_cc.ir import hlo
from neuronx_cc.ir.constants import is_splat
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space, Stream, Variable
from neuronx_cc.ir.isa.table import NUMBER
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine, Sizes
from neuronx_cc.passes.analysis.effects import computations_run_once, effectful_computations

SPREAD_ELEMENTS = 512
"""Elements of a broadcast scalar that are copied one by one."""


class Transposes(Enum):
    """How contractions transpose 16- and 8-bit operands."""

    VALUES = "values"
    """As values: an infinity or NaN spreads over its 128 rows."""
    WATCHED = "watched"
    """As values, with one more result of the program, f32[1]: NaN if one was met, else 0."""
    BITS = "bits"
    """As bit patterns."""


class Context:
    """State of one compilation below the HLO level."""

    def __init__(
        self,
        module: hlo.HloModule,
        machine: Machine,
        fast_relayout: bool = True,
        transposes: Transposes = Transposes.VALUES,
        planner: Planner | None = None,
        apart: Set[hlo.Operation] = frozenset(),
        kept: tuple[int, int] = PARTS[0],
        defined_codes: bool = False,
    ) -> None:
        self.module = module
        self.apart = apart
        """Contractions that are no part of an attention's kernel."""
        self.fast_relayout = fast_relayout
        """Whether TensorE may transpose 16- and 8-bit values as such: faster, but infinities and NaNs spread."""
        self.builder = Builder(machine)
        self.fixed = Fixed(self.builder)
        self.planner = planner or Planner(self.timing)
        self.transposes = transposes
        self.defined_codes = defined_codes
        """Whether whoever runs the program sees to it that no code among its parameters is NaN."""
        self.watch = Watch(self.builder) if fast_relayout and transposes is Transposes.WATCHED else None
        self.recovery = Recovery(self.builder, computations_run_once(module))
        self.homes: dict[hlo.SSAValue, list[View]] = {}
        self.constants: list[np.ndarray] = []
        self._constant_homes: dict[tuple[str, str], View] = {}
        self.outputs: dict[hlo.SSAValue, View] = {}
        """Values whose HBM home is a program result."""
        self.listed: dict[hlo.SSAValue, Listed] = {}
        """Results of gathers that contractions read where the rows lie; their homes are those of ``dots.listed``."""
        self.permuted: dict[hlo.SSAValue, View] = {}
        """Values that are another order of a program result -> how they would lie in its memory."""
        self._last_use: dict[hlo.SSAValue, int] = {}
        self._within: dict[hlo.SSAValue, list[hlo.SSAValue]] = {}
        """Values -> those in whose memory they lie, as windows of them or as other results of one op."""
        self._owned: dict[hlo.SSAValue, list[Alloc]] = {}
        self.prefix = ""
        """Of kernel names: the region that is being lowered."""
        self.carried: dict[hlo.SSAValue, View] = {}
        """Elements of a loop body's parameter, donated ones of the entry -> buffers to overwrite when it is done."""
        self.counted: dict[hlo.SSAValue, Affine] = {}
        """Integers that are affine in the counts of open loops."""
        self.residents = Residents(self.builder.sbuf, self.sizes, kept)
        self._elements: dict[hlo.SSAValue, dict[int, list[hlo.SSAValue]]] = {}
        self.load_casts: dict[hlo.SSAValue, hlo.SSAValue] = {}
        """What the DMA casts that loads the tiles of contractions: result -> operand."""
        self.scaled: dict[hlo.SSAValue, Scaled] = {}
        """Operands of contractions that these make of codes as they come."""
        for computation in module.computations():
            self.cast_on_load(computation)
        self.left: list[Left | State] | None = None
        """Told what each kernel of the entry computation leaves, and each iteration of its loops, if anybody wants to
        know."""

    @property
    def timing(self) -> Timing:
        return self.builder.timing

    @property
    def sizes(self) -> Sizes:
        return self.builder.sizes

    @cached_property
    def combiners(self) -> dict[str, str]:
        """Computation name -> opcode, for computations that are one binary op of their two parameters."""
        return simple_combiners(self.module)

    @cached_property
    def effectful(self) -> Set[str]:
        return effectful_computations(self.module)

    def cast_on_load(self, computation: hlo.ComputationOp, epilogues: Set[hlo.Operation] = frozenset()) -> None:
        """Note the casts that kernels of contractions, which have ``epilogues``, do as they load tiles."""
        self.load_casts |= {op.results[0]: op.sources[0] for op in computation.block.ops if is_load_cast(op, epilogues)}

    @cached_property
    def device_numbers(self) -> View:
        """u32[2]: the replica's and the partition's number, which the runtime writes."""
        return self.variable("device", "device", "u32", (2,))

    def elements(self, value: hlo.SSAValue) -> dict[int, list[hlo.SSAValue]]:
        """Index -> the ``get-tuple-element``s of a tuple, of which code generation makes no others."""
        found = self._elements.get(value)
        if found is None:
            found = self._elements[value] = elements(value)
        return found

    def trusts(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` is read where a parameter of the program lies whose codes are not NaN, which is noted then;
        in loops too, which read windows of what they do not change in place. Donated ones may be overwritten.
        """
        if not self.defined_codes:
            return False
        place, variables = self.hbm(value), self.builder.program.variables
        donated = {alias.parameter for alias in self.module.aliases} | {number for number, _ in self.module.donors}
        for at, each in enumerate(variables):
            kept = each.kind == "input" and each.index not in donated
            if kept and each.offset == place.alloc.lo and each.dtype == place.dtype == hlo.shape_of(value).dtype:
                variables[at] = replace(each, defined=True)
                return True
        return False

    def moves_values(self, dtype: str) -> bool:
        """Whether contractions transpose values of ``dtype`` as such: 16- and 8-bit types, when that is allowed."""
        return self.fast_relayout and self.transposes is not Transposes.BITS and hlo.itemsize(dtype) < 4

    def source_of(self, value: hlo.SSAValue) -> hlo.SSAValue:
        """The value to read: a cast of given data happens on load."""
        while value in self.load_casts:
            value = self.load_casts[value]
        return value

    def read_for(self, value: hlo.SSAValue) -> Iterator[hlo.SSAValue]:
        """``value`` and what is read in its stead: codes and scales, casts on load, also of what it is a view of."""
        yield value
        if (scaled := self.scaled.get(value)) is not None:
            yield from scaled.read
        while (source := base(value)) in self.load_casts:
            value = self.load_casts[source]
            yield value

    # ---- variables -------------------------------------------------------------------------------------------

    def variable(
        self,
        name: str,
        kind: str,
        dtype: str,
        dims: tuple[int, ...],
        index: int = -1,
        alias: int = -1,
        alloc: Alloc | None = None,
        argument: str = "",
    ) -> View:
        """Reserve HBM for a named buffer that lives as long as the program, or name ``alloc`` once more."""
        nbytes = prod(dims) * hlo.itemsize(dtype)
        alloc = self._hbm(nbytes, name, unused=True) if alloc is None else alloc
        self.builder.program.variables.append(
            Variable(name, kind, alloc.lo, nbytes, dtype, dims, index, alias, argument)
        )
        return linear(alloc, alloc.lo, dtype, dims)

    def _hbm(self, nbytes: int, name: str, unused: bool = False) -> Alloc:
        alloc = self.builder.hbm.allocate(nbytes, name, unused=unused)
        if alloc is None:
            live = sorted(self.builder.hbm.live, key=lambda alloc: alloc.lo - alloc.hi)[:5]
            listed = ", ".join(f"{alloc.name} {(alloc.hi - alloc.lo) >> 20} MiB" for alloc in live) or "none"
            raise CompileError(
                "EOOM001",
                f"the program needs more than the {self.builder.hbm.capacity >> 30} GiB of HBM of one core: "
                f"{nbytes >> 20} MiB wanted for {name}, {self.builder.hbm.used >> 20} MiB in use; largest: {listed}",
                "use a smaller batch, or split the model over cores",
            )
        return alloc

    def constant(self, array: np.ndarray, dtype: str, name: str = "") -> View:
        """HBM home of constant data; equal data is stored once."""
        key, number = (self.module.constants.add(array, dtype), dtype), len(self.constants)
        if key not in self._constant_homes:
            self.constants.append(array)
            self._constant_homes[key] = self.variable(
                name or f"constant{number}", "constant", dtype, array.shape, number
            )
        return self._constant_homes[key]

    # ---- homes -----------------------------------------------------------------------------------------------

    def splat(self, value: hlo.SSAValue) -> float | None:
        """The single value that a compile-time constant holds everywhere, or None."""
        while isinstance(value, hlo.OpResult) and value.op.name in ("hlo.broadcast", "hlo.reshape", "hlo.copy"):
            value = value.op.operands[0]
        if not isinstance(value, hlo.OpResult) or not isinstance(value.op, hlo.ConstantOp):
            return None
        array = self.module.constants[value.op.value.data]
        if array.size != 1 and not is_splat(array):
            return None
        item = array[(0,) * array.ndim]
        return int(item) if hlo.shape_of(value).dtype not in hlo.FLOATS else float(item)

    def views(self, value: hlo.SSAValue) -> list[View]:
        """All views of ``value`` that need no copy; resident ones first. Never empty."""
        found = self._derived(value)
        if not found:
            found = [self.hbm(value)]
        return sorted(found, key=lambda view: not view.in_sbuf)

    def lies_in(self, value: hlo.SSAValue, place: View) -> bool:
        """Whether ``value``, or what it is a view of, lies in ``place`` already."""
        return base(value) in self.homes and any(_same_place(view, place) for view in self._derived(value))

    def _derived(self, value: hlo.SSAValue) -> list[View]:
        if value in self.homes:
            return self.homes[value]
        if isinstance(value, hlo.OpResult) and isinstance(value.op, hlo.ConstantOp):
            self.homes[value] = [self._constant_home(value.op)]
            return self.homes[value]
        if isinstance(value, hlo.OpResult) and is_view(value.op):
            derived = (apply_view(value.op, view) for view in self._derived(value.op.sources[0]))
            return [view for view in derived if view is not None]
        raise AssertionError(f"value of {value.owner} has no home")

    def literal(self, value: hlo.SSAValue) -> tuple[View, np.ndarray] | None:
        """A view of a large constant by its own bytes (offsets from 0, no HBM yet), and the array; else None."""
        source = base(value)
        if not isinstance(source, hlo.OpResult) or not isinstance(source.op, hlo.ConstantOp):
            return None
        array = self.module.constants[source.op.value.data]
        if array.size <= 1 or not array.flags.c_contiguous:
            return None
        view = seen_by(value, linear(Alloc(Space.HBM, 0, array.nbytes), 0, source.op.shape.dtype, array.shape))
        return None if view is None or view.dtype != source.op.shape.dtype else (view, array)

    def homes_of_constant(self, value: hlo.SSAValue) -> View:
        """The dense HBM home of the constant that ``value`` is a view of."""
        (home,) = self._derived(base(value))
        return home

    def _constant_home(self, op: hlo.ConstantOp) -> View:
        array = self.module.constants[op.value.data]
        dims = op.shape.dims
        if is_splat(array):
            scalar = self.constant(np.asarray(array[(0,) * array.ndim]), op.shape.dtype)
            return scalar.broadcast(dims, ())
        return self.constant(array, op.shape.dtype, op.loc.name)

    def hbm(self, value: hlo.SSAValue) -> View:
        """A view of ``value`` in HBM, copying it (or the array it is a view of) there if need be."""
        for view in self._derived(value):
            if not view.in_sbuf:
                return view
        # views of nothing need not apply: it has a home of its own, where nothing is copied
        if isinstance(value, hlo.OpResult) and is_view(value.op) and hlo.shape_of(value).size:
            operand = value.op.sources[0]
            # of an operand that no HBM holds, what is made is what the view applies to
            cut = as_stored(value) is None and as_stored(operand) is not None
            found = None if cut else apply_view(value.op, self.hbm(operand))
            derived = found or apply_view(value.op, self.dense(operand))
            assert derived is not None, "every view applies to a dense array"
            return derived
        return self.dense(value)

    def dense(self, value: hlo.SSAValue) -> View:
        """A dense row-major HBM home of ``value``."""
        shape = hlo.shape_of(value)
        for view in self._derived(value):
            if view == linear(view.alloc, view.start, view.dtype, shape.dims) and not view.in_sbuf:
                return view
        target = self.new_hbm(value)
        if shape.size == 0:
            self.homes.setdefault(value, []).append(target)
            return target
        candidates = self.views(value)
        one = next((view for view in candidates if repeats_one(view) and not view.in_sbuf), None)
        if one is not None and shape.size > SPREAD_ELEMENTS:
            fill(self.builder, target, self.splat(value), one)
        elif not any(transfer(self.builder, target, view, _copy_stream(view)) for view in candidates):
            source = candidates[0] if base(value) is value else self.hbm(value)
            if source.in_sbuf:
                source = self._stored(value, source)
            transfer(self.builder, target, source, _copy_stream(source), force=True)
        self.homes.setdefault(value, []).append(target)
        return target

    def _stored(self, value: hlo.SSAValue, source: View) -> View:
        """A copy in HBM of a view on chip, with the dim outermost that lies on the partitions: moved in long runs."""
        axis = next((dim for dim, atoms in enumerate(source.dims) if any(atom.partition for atom in atoms)), -1)
        if axis < 0:
            return source
        stored = outermost(self.own_hbm(base(value), hlo.shape_of(value)), [axis])
        if not transfer(self.builder, stored, source, Stream.DMA_STORE):
            return source
        self.homes.setdefault(value, []).append(stored)
        return stored

    def new_hbm(self, value: hlo.SSAValue) -> View:
        """An empty HBM home for ``value``, its program result if it has one; owned by ``value``'s base."""
        if value in self.outputs and not self.outputs[value].in_sbuf:
            return self.outputs[value]
        shape = hlo.shape_of(value)
        alloc = self._hbm(shape.nbytes, hlo.loc_of(value).name)
        self._owned.setdefault(base(value), []).append(alloc)
        return linear(alloc, alloc.lo, shape.dtype, shape.dims)

    def store(self, value: hlo.SSAValue, target: View) -> None:
        """Copy ``value`` to an HBM view of its shape."""
        shape = hlo.shape_of(value)
        if shape.size == 0 or (not self._derived(value) and self._store_cut(value, target)):
            return
        one = next((view for view in self.views(value) if repeats_one(view) and not view.in_sbuf), None)
        dense = target == linear(target.alloc, target.start, target.dtype, shape.dims)
        if one is not None and dense and shape.size > SPREAD_ELEMENTS and target.dtype in NUMBER:
            fill(self.builder, target, self.splat(value), one)
        elif not any(transfer(self.builder, target, view, Stream.DMA_STORE) for view in self.views(value)):
            source = self.hbm(value)
            if source != target:
                transfer(self.builder, target, source, Stream.DMA_STORE)

    def _store_cut(self, value: hlo.SSAValue, target: View) -> bool:
        """Copy the first rows of what lies on chip in tiles of rows: full tiles, and what is wanted of the last one."""
        op = value.owner
        if not isinstance(op, hlo.SliceOp) or any(dim.start or dim.stride > 1 for dim in op.slice.data):
            return False
        for view in self._derived(op.operand):
            axes = [axis for axis, size in enumerate(target.shape) if size < view.shape[axis]]
            inner = factors(view, axes[0])[-1:] if len(axes) == 1 else []
            if not inner or not view.in_sbuf:
                continue
            size, full = target.shape[axes[0]], target.shape[axes[0]] // inner[0] * inner[0]
            parts = [(start, count) for start, count in ((0, full), (full, size - full)) if count]
            found = [[each.slice(axes[0], *part) for each in (target, view)] for part in parts]
            pairs = [(there, here) for there, here in found if there is not None and here is not None]
            if len(pairs) == len(parts) and all(transfer(self.builder, *pair, Stream.DMA_STORE) for pair in pairs):
                return True
        return False

    def new_resident(self, value: hlo.SSAValue, nbytes: int, whole: bool = False) -> Alloc | None:
        """SBUF for a resident home of ``value``, ``nbytes`` a partition, or None when it would crowd the tiles out.

        ``whole``: of an array of a contraction that comes or leaves whole.
        """
        alloc = self.residents.place(nbytes, hlo.loc_of(value).name, whole)
        if alloc is not None:
            self._owned.setdefault(base(value), []).append(alloc)
        return alloc

    def give_back(self, value: hlo.SSAValue, alloc: Alloc) -> None:
        """Free what ``new_resident`` gave, where nothing has been emitted for it."""
        self._owned[base(value)].remove(alloc)
        self.residents.free(alloc)

    def own_hbm(self, owner: hlo.SSAValue, shape: hlo.Shape) -> View:
        """A dense HBM buffer that lives as long as ``owner``."""
        alloc = self._hbm(shape.nbytes, hlo.loc_of(owner).name)
        self._owned.setdefault(base(owner), []).append(alloc)
        return linear(alloc, alloc.lo, shape.dtype, shape.dims)

    def may_overwrite(self, value: hlo.SSAValue, view: View) -> bool:
        """Whether ``view`` lies in a buffer of ``value``'s own, or in one that a loop lends to its body."""
        source = base(value)
        lent = self.carried.get(source)
        if lent is not None and lent.alloc is view.alloc:
            return True
        return any(view.alloc is alloc for alloc in self._owned.get(source, []))

    def takes_over(self, value: hlo.SSAValue, former: hlo.SSAValue, home: View, step: int) -> bool:
        """Whether ``value``, made at ``step``, may lie in ``home``, where ``former`` is read last; if so it owns it."""
        dead = self.last_use(former) <= step
        if not dead or not self.may_overwrite(former, home) or self.outputs.get(value, home) != home:
            return False
        self.adopt(value, former)
        return True

    def adopt(self, value: hlo.SSAValue, former: hlo.SSAValue) -> None:
        """``value`` takes over the buffers of ``former``, which is dead, lent ones too."""
        if base(former) in self.carried and value not in self.outputs:
            self.carried[value] = self.carried[base(former)]
        self._owned.setdefault(value, []).extend(self._owned.pop(base(former), []))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """The values of one computation, its kernels named after ``name``: what it owns is freed at its end.

        What is made once on request, in a computation that may not be run, is not there after it.
        """
        outside = self.homes, self.outputs, self.carried, self._last_use, self._owned
        prefix, self.prefix = self.prefix, f"{name}/"
        self.homes, self.outputs, self.carried, self._last_use, self._owned = {}, {}, {}, {}, {}
        with self.fixed.scope():
            yield
            for allocs in self._owned.values():
                self._free(allocs)
        self.homes, self.outputs, self.carried, self._last_use, self._owned = outside
        self.prefix = prefix

    # ---- lifetimes -------------------------------------------------------------------------------------------

    def note_use(self, value: hlo.SSAValue, step: int) -> None:
        source = base(value)
        if step > self._last_use.get(source, -1):
            self._last_use[source] = step
            for owner in self._within.get(source, ()):
                self.note_use(owner, step)

    def lies_within(self, value: hlo.SSAValue, owner: hlo.SSAValue) -> None:
        """The memory of ``owner``, where ``value`` lies as well, is needed until the last use of ``value``."""
        source = base(value)
        if source is not base(owner):
            self._within.setdefault(source, []).append(owner)
            self.note_use(owner, self.last_use(source))

    def last_use(self, value: hlo.SSAValue) -> int:
        return self._last_use.get(base(value), -1)

    def release(self, step: int, candidates: list[hlo.SSAValue]) -> None:
        """Free the memory of values among ``candidates`` that nothing uses after ``step``."""
        for value in candidates:
            source = base(value)
            if self._last_use.get(source, -1) > step:
                continue
            self._free(self._owned.pop(source, []))

    def _free(self, allocs: list[Alloc]) -> None:
        for alloc in allocs:
            if alloc.space is Space.SBUF:
                self.residents.free(alloc)
            else:
                self.builder.hbm.free(alloc)


def _same_place(one: View, other: View) -> bool:
    """Whether two views have the same elements in the same order."""
    same = one.alloc is other.alloc and one.start == other.start and one.dtype == other.dtype
    return same and [coalesce(atoms) for atoms in one.dims] == [coalesce(atoms) for atoms in other.dims]


def _copy_stream(source: View) -> Stream:
    return Stream.DMA_STORE if source.in_sbuf else Stream.DMA_LOAD
