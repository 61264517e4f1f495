"""Reference semantics of the custom calls of ``ir.scans``: running folds, element after element."""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.reference.evaluator import Evaluator
from neuronx_cc.ir.reference.linalg import custom_call as other_call
from neuronx_cc.ir.reference.values import Array, Value
from neuronx_cc.ir.scans import scan_of


def custom_call(evaluator: Evaluator, op: hlo.CustomCallOp, *operands: Value) -> Value:
    """A scan or shift along one dim; other targets are left to ``linalg``."""
    scan = scan_of(op)
    if scan is None:
        return other_call(op, *operands)
    turn = slice(None, None, -1 if scan.reverse else 1)
    arrays: list[Array] = [np.moveaxis(np.asarray(operand), scan.axis, 0)[turn] for operand in operands]
    initial = [arrays.pop()[0]] if scan.initial else []
    if not scan.body:
        result = np.concatenate([initial or arrays[0][:1], arrays[0][:-1]])
    else:
        state = [array[0] for array in arrays]
        if initial:  # the last array's; what the others would be has no say in it
            state = list(evaluator.call_on_arrays(scan.body, *state[:-1], *initial, *state))
        found = [state[scan.result]]
        for place in range(1, len(arrays[0])):
            state = list(evaluator.call_on_arrays(scan.body, *state, *(array[place] for array in arrays)))
            found.append(state[scan.result])
        result = np.stack(found)
    return np.ascontiguousarray(np.moveaxis(result[turn], 0, scan.axis))


SCANS_CALLING = {"custom-call": custom_call}
