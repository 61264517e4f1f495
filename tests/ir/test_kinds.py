"""What the base classes of ops say of them holds in the reference semantics."""

from inspect import getattr_static

import numpy as np
import pytest
from op_cases import Case, cases

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate

NUMPY_KINDS = {"f32": "f", "s32": "i"}
CASES = [case for case in cases() if case.dtype in NUMPY_KINDS]


def of(*kinds: type[hlo.HloOp]) -> list[Case]:
    return [case for case in CASES if case.opcode in hlo.opcodes(*kinds)]


def combined(opcode: str, *operands: np.ndarray) -> np.ndarray:
    text = "a = s32[64] parameter(0) b = s32[64] parameter(1)"
    (result,) = evaluate(
        parse_text(f"HloModule m ENTRY e {{ {text} ROOT r = s32[64] {opcode}(a, b) }}"), list(operands)
    )
    return np.asarray(result)


@pytest.mark.parametrize("case", of(hlo.MovementOp, hlo.ChoosingOp), ids=lambda case: case.name)
def test_elements_are_those_of_operands(case: Case) -> None:
    """Of movement as they are; of ops that choose perhaps negated."""
    module = parse_text(case.text)
    literals = [module.constants[op.value.data] for op in ops_of(module.entry.block) if isinstance(op, hlo.ConstantOp)]
    held = [np.asarray(array).reshape(-1) for array in (*case.inputs, *literals)]
    known = np.concatenate([array for array in held if array.dtype.kind == NUMPY_KINDS[case.dtype]])
    if case.opcode in hlo.opcodes(hlo.ChoosingOp):
        known = np.concatenate([known, -known])
    for result in evaluate(module, list(case.inputs)):
        assert np.isin(np.asarray(result), known).all()


def test_combiners() -> None:
    """They commute and associate, and only the idempotent ones combine a value with itself to itself."""
    a, b, c = np.random.default_rng(7).integers(-(2**31), 2**31, (3, 64)).astype(np.int32)
    assert hlo.opcodes(hlo.CombinerOp) == COMBINERS.keys()
    for opcode in COMBINERS:
        assert (combined(opcode, a, b) == combined(opcode, b, a)).all()
        assert (combined(opcode, combined(opcode, a, b), c) == combined(opcode, a, combined(opcode, b, c))).all()
        assert (combined(opcode, a, a) == a).all() == (opcode in hlo.opcodes(hlo.IdempotentOp))


def test_kinds_are_found_by_opcode() -> None:
    assert hlo.opcodes(hlo.RegionOp) == {"while", "conditional"}
    assert hlo.opcodes(hlo.ViewOp) < hlo.opcodes(hlo.MovementOp)
    assert not hlo.opcodes(hlo.ExchangeOp) & hlo.opcodes(hlo.ReducingOp)


def test_operands_are_read_by_properties() -> None:
    """Not by xDSL's accessors, which take five times as long, however it sets them."""
    fields = ("lhs", "rhs", "operand", "result")
    read = [getattr_static(op, field) for op in hlo.OPCODES.values() for field in fields if hasattr(op, field)]
    assert len(read) > 100
    assert all(isinstance(each, property) for each in read)
