"""Takes tuples apart: what remains is one flat root tuple and the tuples of while, conditional, sort and the like.

Input: an inlined module. Output: no ``get-tuple-element`` of a ``tuple``; barriers on tuples become barriers on their
elements; the entry's tuple parameters become one parameter per array, in order, and its root one flat ``tuple`` (or one
array, if it was one). Aliases and donors are renumbered; the entry's attribute ``flattened_parameters`` lists, for
every new parameter, the old parameter number and index (``0{1} 0{2,0} 1``).
"""

from dataclasses import replace as with_fields

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import Alias, HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, ops_of, replace
from neuronx_cc.passes.manager import PassContext

Path = tuple[int, ...]


def run(module: HloModule, context: PassContext) -> None:
    _flatten_parameters(module)
    _flatten_root(module)
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.OptBarrierOp):
                _split_barrier(op)
            elif isinstance(op, hlo.GetTupleElementOp):
                _forward_element(op)
        for op in reversed(list(ops_of(computation.block))):
            if isinstance(op, hlo.TupleOp | hlo.GetTupleElementOp) and op.results[0].first_use is None:
                erase(op)


def _forward_element(op: hlo.GetTupleElementOp) -> None:
    source = defining_op(op.operand)
    if isinstance(source, hlo.TupleOp):
        replace(op, source.operands[op.index.data])


def _split_barrier(op: hlo.OptBarrierOp) -> None:
    """``opt-barrier((a, b))`` -> ``tuple(opt-barrier(a), opt-barrier(b))``."""
    type_ = op.results[0].type
    if not isinstance(type_, hlo.TupleType):
        return
    elements = []
    for index, element_type in enumerate(type_.data):
        element = _element(op, op.operand, index, element_type)
        barrier = hlo.OptBarrierOp.make((element,), element_type, op.loc)
        assert op.parent is not None
        op.parent.insert_op_before(barrier, op)
        _split_barrier(barrier)
        previous = op.prev_op
        assert previous is not None
        elements.append(previous.results[0])
    replace(op, insert_before(op, hlo.TupleOp, elements, type_, op.loc))


def _element(anchor: hlo.Operation, value: hlo.SSAValue, index: int, type_: hlo.Attribute) -> hlo.SSAValue:
    source = defining_op(value)
    if isinstance(source, hlo.TupleOp):
        return source.operands[index]
    loc = hlo.loc_of(value)
    return insert_before(anchor, hlo.GetTupleElementOp, (value,), type_, loc, {"index": hlo.IntAttr(index)})


def leaves(type_: hlo.Attribute, path: Path = ()) -> list[tuple[Path, hlo.Attribute]]:
    """The array and token types inside ``type_`` with their index paths, in order."""
    if not isinstance(type_, hlo.TupleType):
        return [(path, type_)]
    return [leaf for i, element in enumerate(type_.data) for leaf in leaves(element, (*path, i))]


def _flatten_root(module: HloModule) -> None:
    block = module.entry.block
    root = module.entry.root
    if not isinstance(root.type, hlo.TupleType):
        return
    flat = leaves(root.type)
    source = defining_op(root)
    if isinstance(source, hlo.TupleOp) and all(len(path) == 1 for path, _ in flat):
        return
    last = block.last_op
    assert last is not None
    values = []
    for path, _ in flat:
        value = root
        for index in path:
            assert isinstance(value.type, hlo.TupleType)
            value = _element(last, value, index, value.type.data[index])
        values.append(value)
    loc = hlo.loc_of(root)
    result = insert_before(last, hlo.TupleOp, values, hlo.tuple_type(tuple(value.type for value in values)), loc)
    last.operands = [result]
    if len(flat) != len(root.type.data):
        _drop_layout(module)
    numbers = {path: number for number, (path, _) in enumerate(flat)}
    module.aliases = tuple(
        with_fields(alias, output_index=(numbers[alias.output_index],)) if alias.output_index in numbers else alias
        for alias in module.aliases
    )


def _flatten_parameters(module: HloModule) -> None:
    entry = module.entry
    old = list(entry.block.args)
    if not any(isinstance(arg.type, hlo.TupleType) for arg in old):
        return
    first = entry.block.first_op
    assert first is not None
    locs = [entry.parameter_loc(i) for i in range(len(old))]
    numbers: dict[tuple[int, Path], int] = {}
    for number, arg in enumerate(old):
        flat = leaves(arg.type)
        new: dict[Path, hlo.SSAValue] = {}
        for path, type_ in flat:
            numbers[number, path] = len(numbers)
            new[path] = entry.block.insert_arg(type_, len(entry.block.args))
        arg.replace_all_uses_with(pack(first, arg.type, (), new, locs[number]))
    for arg in old:
        entry.block.erase_arg(arg)
    for (number, path), position in numbers.items():
        suffix = "".join(f".{index}" for index in path)
        entry.set_parameter_loc(position, with_fields(locs[number], name=locs[number].name + suffix))
    module.aliases = tuple(_renumber(alias, numbers) for alias in module.aliases)
    module.donors = tuple((numbers.get(donor, donor[0]), ()) for donor in module.donors)
    listed = " ".join(f"{number}{{{','.join(map(str, path))}}}" if path else str(number) for number, path in numbers)
    _drop_layout(module)
    entry.attributes["flattened_parameters"] = hlo.StrAttr(listed)


def _drop_layout(module: HloModule) -> None:
    """The header's layout text no longer describes the entry; the default layout does."""
    module.header = tuple(item for item in module.header if item[0] != "entry_computation_layout")


def pack(
    anchor: hlo.Operation, type_: hlo.Attribute, path: Path, values: dict[Path, hlo.SSAValue], loc: hlo.Loc
) -> hlo.SSAValue:
    """The value of ``type_`` made above ``anchor`` of ``values``, one for each path to an array."""
    if not isinstance(type_, hlo.TupleType):
        return values[path]
    elements = [pack(anchor, element, (*path, i), values, loc) for i, element in enumerate(type_.data)]
    return insert_before(anchor, hlo.TupleOp, elements, type_, loc)


def _renumber(alias: Alias, numbers: dict[tuple[int, Path], int]) -> Alias:
    number = numbers.get((alias.parameter, alias.parameter_index))
    if number is None:
        return alias
    return with_fields(alias, parameter=number, parameter_index=())
