"""Rewrites ``scan`` as a loop that reads one slice of each input and writes one of each output.

Input: any module. Output: no ``scan``. Its operands are arrays, sliced along ``dimension``, and the initial values of
``num_carries`` carries; its computation takes slices (without that dim) and carries, and returns slices of the outputs
and carries; its results are the outputs and the last carries. ``is_reverse`` starts at the end. What ``is_associative``
allows is not made use of. Source: XLA's scan expander, which gives ops of this form their meaning on the CPU.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.expansions.build import Build, Value, replace_results
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ScanOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.ScanOp):
                replace_results(op, _loop(Build.before(module, op), op))


def _loop(b: Build, op: hlo.ScanOp) -> list[Value]:
    axis, carries = op.dimension.data, op.num_carries.data
    inputs, inits = list(op.args[: len(op.args) - carries]), list(op.args[len(op.args) - carries :])
    type_ = op.results[0].type
    types = list(type_.data) if isinstance(type_, hlo.TupleType) else [type_]
    shapes = [part.data for part in types[: len(types) - carries] if isinstance(part, hlo.ArrayType)]
    count = (hlo.shape_of(inputs[0]) if inputs else shapes[0]).dims[axis]
    outputs = [b.number(0, shape.dtype, shape.dims) for shape in shapes]
    called = b.module.computation(op.to_apply.data[0]).root.type

    def step(inner: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        at = inner.sub(inner.number(count - 1, "s32"), index) if op.is_reverse.data else index
        zero = inner.number(0, "s32")
        state, arrays = state[:carries] + state[carries + len(inputs) :], state[carries : carries + len(inputs)]

        def starts(rank: int) -> list[Value]:
            return [at if dim == axis else zero for dim in range(rank)]

        slices = []
        for array in arrays:
            dims = hlo.shape_of(array).dims
            one = inner.dynamic_slice(array, starts(len(dims)), (*dims[:axis], 1, *dims[axis + 1 :]))
            slices.append(inner.reshape(one, dims[:axis] + dims[axis + 1 :]))
        result = inner.typed(hlo.CallOp, [*slices, *state[:carries]], called, to_apply=op.to_apply)
        parts = [result]
        if isinstance(called, hlo.TupleType):
            parts = [inner.element(result, number) for number in range(len(called.data))]
        written = []
        for array, part in zip(state[carries:], parts[: len(shapes)], strict=True):
            dims = hlo.shape_of(array).dims
            part = inner.reshape(part, (*dims[:axis], 1, *dims[axis + 1 :]))
            written.append(inner.dynamic_update_slice(array, part, starts(len(dims))))
        return [*parts[len(shapes) :], *arrays, *written]

    done = b.loop(count, [*inits, *inputs, *outputs], step)
    return [*done[carries + len(inputs) :], *done[:carries]]
