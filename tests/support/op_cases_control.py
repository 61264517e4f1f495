"""Conformance cases of control flow (see ``op_cases``)."""

from collections.abc import Callable

import numpy as np
from op_cases import DIMS, Case, module_text, random_array, shaped


def _turn(x: str) -> str:
    return f"turn {{\n  a = {x} parameter(0)\n  ROOT b = {x} reverse(a), dimensions={{1}}\n}}\n"


def _conditional(opcode: str, dtype: str) -> Case:
    x = shaped(dtype, DIMS)
    same = f"same {{\n  ROOT a = {x} parameter(0)\n}}\n"
    root = f"  ROOT r = {x} conditional(p0, p1, p1), true_computation=turn, false_computation=same"
    text = module_text([("pred", ()), (dtype, DIMS)], root, _turn(x) + same)
    return Case(opcode, dtype, text, (np.array(True), random_array(dtype, DIMS, opcode)))


def _while(opcode: str, dtype: str) -> Case:
    """As often as a parameter says."""
    x = shaped(dtype, DIMS)
    state = f"(s32[], {x})"
    more = (
        f"more {{\n  t = {state} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  z = s32[] constant(0)\n"
        "  ROOT c = pred[] compare(i, z), direction=GT\n}\n"
    )
    again = (
        f"again {{\n  t = {state} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n"
        f"  a = {x} get-tuple-element(t), index=1\n  one = s32[] constant(1)\n  j = s32[] subtract(i, one)\n"
        f"  b = {x} reverse(a), dimensions={{1}}\n  ROOT r = {state} tuple(j, b)\n}}\n"
    )
    body = (
        f"  t = {state} tuple(p0, p1)\n  w = {state} while(t), condition=more, body=again\n"
        f"  ROOT r = {x} get-tuple-element(w), index=1"
    )
    text = module_text([("s32", ()), (dtype, DIMS)], body, more + again)
    return Case(opcode, dtype, text, (np.array(3, np.int32), random_array(dtype, DIMS, opcode)))


def _scan(opcode: str, dtype: str) -> Case:
    """Everything moves on by one slice."""
    (rows, columns), x = DIMS, shaped(dtype, DIMS)
    row = shaped(dtype, (rows,))
    types = f"{row}, {row}"
    step = f"step {{\n  a = {row} parameter(0)\n  c = {row} parameter(1)\n  ROOT t = ({types}) tuple(c, a)\n}}\n"
    root = f"  ROOT r = ({x}, {row}) scan(p0, p1), dimensions={{1}}, num_carries=1, is_reverse=true, to_apply=step"
    inputs = random_array(dtype, (rows, columns), opcode), random_array(dtype, (rows,), opcode)
    return Case(opcode, dtype, module_text([(dtype, DIMS), (dtype, (rows,))], root, step), inputs)


BUILDERS: dict[str, Callable[[str, str], Case]] = {"conditional": _conditional, "scan": _scan, "while": _while}
