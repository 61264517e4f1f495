"""Cases of the window operators (see ``op_cases``)."""

from collections.abc import Callable

from op_cases import ROUNDING, Case, combiner, module_text, random_array, shaped

from neuronx_cc.ir.types import FLOATS

WINDOW = (6, 37)
POOLED = (3, 36)


def reduce_window(opcode: str, dtype: str) -> Case:
    """A maximum and a sum (a disjunction) over windows with strides and padding, and a cumulative maximum."""
    total = "or" if dtype == "pred" else "add"
    least = "false" if dtype == "pred" else "-inf" if dtype in FLOATS else str(_least(dtype))
    lines = [
        f"  zero = {dtype}[] constant({'false' if dtype == 'pred' else '0'})",
        f"  least = {dtype}[] constant({least})",
    ]
    windows = [
        ("maximum", "least", POOLED, "size=3x2 stride=2x1 pad=0_1x0_0"),
        (total, "zero", POOLED, "size=3x2 stride=2x1 pad=0_1x0_0"),
        ("maximum", "least", WINDOW, "size=1x37 pad=0_0x36_0"),
    ]
    for index, (kind, start, dims, window) in enumerate(windows):
        shape = shaped(dtype, dims)
        lines.append(
            f"  r{index} = {shape} reduce-window(p0, {start}), window={{{window}}}, to_apply={kind}_computation"
        )
    shapes = ", ".join(shaped(dtype, dims) for _, _, dims, _ in windows)
    lines.append(f"  ROOT t = ({shapes}) tuple(r0, r1, r2)")
    text = module_text([(dtype, WINDOW)], "\n".join(lines), combiner("maximum", dtype) + combiner(total, dtype))
    return Case(opcode, dtype, text, (random_array(dtype, WINDOW, opcode, -1, 1),), 4 * ROUNDING.get(dtype, 0))


def _least(dtype: str) -> int:
    return 0 if dtype[0] == "u" else -(1 << (int(dtype[1:]) - 1))


def select_and_scatter(opcode: str, dtype: str) -> Case:
    """The largest element of each window of 2 x 3 takes up the source."""
    keeps = (
        f"keeps {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
        "  ROOT c = pred[] compare(a, b), direction=GE\n}\n"
    )
    attributes = "window={size=2x3 stride=2x2 pad=0_0x0_0}, select=keeps, scatter=add_computation"
    lines = [
        f"  zero = {dtype}[] constant(0)",
        f"  ROOT r = {shaped(dtype, WINDOW)} select-and-scatter(p0, p1, zero), {attributes}",
    ]
    parameters = [(dtype, WINDOW), (dtype, (3, 18))]
    inputs = tuple(random_array(*parameter, opcode, -1, 1) for parameter in parameters)
    text = module_text(parameters, "\n".join(lines), keeps + combiner("add", dtype))
    return Case(opcode, dtype, text, inputs, 4 * ROUNDING.get(dtype, 0))


BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter,
}
