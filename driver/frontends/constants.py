"""Parameters whose values are known become constants of the program: weights that are the same in every run.

Input: a module as imported, and an ``.npz`` file, or arrays by name, of some of its parameters. Output: the module
without these; the others keep their order. So what needs constants, such as weights in 8 bits, applies to them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from neuronx_cc.driver.tensors import numbered, read_some
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import RunError, UsageError
from neuronx_cc.ir.hlo.editing import insert_constant
from neuronx_cc.runtime.arguments import Name


def bind(module: hlo.HloModule, given: str | Mapping[str, Any]) -> None:
    """Raises UsageError EARG915 for arrays that are no parameters, misfit, or are given memory for a result."""
    entry = module.entry
    args = list(entry.block.args)
    locs = [entry.parameter_loc(number) for number in range(len(args))]
    if any(not isinstance(arg.type, hlo.ArrayType) for arg in args):
        raise UsageError("EARG915", "parameters that are tuples have no constants", "make each array a parameter")
    parameters = [(Name(loc.name, loc.op_name), hlo.shape_of(arg)) for loc, arg in zip(locs, args, strict=True)]
    try:
        if isinstance(given, str):
            values = read_some(given, parameters)
        else:
            arrays = {key: np.asarray(value) for key, value in given.items()}
            values = numbered("the constants", arrays, parameters)
    except RunError as error:
        raise UsageError("EARG915", error.message, error.remedy) from None
    donated = {alias.parameter for alias in module.aliases} | {number for number, _ in module.donors}
    for number in sorted(donated & values.keys()):
        named = f"{parameters[number][0]} is given to the program for a result"
        raise UsageError("EARG915", f"{named}, so it is no constant", "leave it out, or do not donate it")
    first = entry.block.first_op
    assert first is not None, "a computation ends with a return"
    for number, array in values.items():
        value = insert_constant(module, first, array, parameters[number][1].dtype, locs[number])
        args[number].replace_all_uses_with(value)
        entry.block.erase_arg(args[number])
    kept = [number for number in range(len(args)) if number not in values]
    for number in range(len(args)):
        entry.attributes.pop(f"param.{number}", None)
    for position, number in enumerate(kept):
        entry.set_parameter_loc(position, locs[number])
    module.aliases = tuple(replace(alias, parameter=kept.index(alias.parameter)) for alias in module.aliases)
    module.donors = tuple((kept.index(number), path) for number, path in module.donors)
    module.header = tuple(item for item in module.header if item[0] != "entry_computation_layout")
