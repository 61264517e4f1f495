"""Programs of plain JAX: functions of numbers, folds, movement, places in arrays, and orders."""

from __future__ import annotations

from math import prod

from plain_jax import FLOATS, INTEGERS, NUMBERS, SMALL, Plain

UNARY = "abs negative sign rint floor ceil trunc exp exp2 expm1 sin cos tanh sinh cosh arctan arcsinh cbrt square "
UNARY += "reciprocal sinc deg2rad degrees nan_to_num positive isnan isfinite signbit arcsin arctanh sqrt log tan fabs"
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "reciprocal", "arccosh")
LAYERS = "relu relu6 sigmoid softplus soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid hard_silu hard_tanh elu "
LAYERS += "celu selu gelu mish squareplus softmax log_softmax standardize glu"
SPECIAL = "erf erfc expit i0e i1e ndtr log_ndtr entr"


def unary(p: Plain) -> None:
    dtype, dims = p.one_of(FLOATS), p.dims()
    x = p.given(dtype, dims)
    kind = p.one_of(("plain", "positive", "layer", "special", "several", "gamma"))
    if kind == "plain":
        p.give(f"jnp.{p.one_of(UNARY.split())}({x})")
    elif kind == "positive":
        p.give(f"jnp.{p.one_of(POSITIVE)}(jnp.abs({x}) + 1)")
    elif kind == "layer":
        name = p.one_of(LAYERS.split())
        if name in ("softmax", "log_softmax", "standardize", "glu"):
            if not dims:
                return unary(p)
            axis = p.axis(dims)
            if name == "glu":
                x, axis = f"jnp.concatenate([{x}, {x} * 2], {axis})", axis
            p.give(f"jax.nn.{name}({x}, axis={axis})")
        else:
            p.give(f"jax.nn.{name}({x})")
    elif kind == "special":
        p.give(f"jax.scipy.special.{p.one_of(SPECIAL.split())}({x if p.chance(0.5) else f'jnp.abs({x})'})")
    elif kind == "gamma":
        p.give(f"jax.scipy.special.{p.one_of(('gammaln', 'digamma', 'i0e', 'i1'))}(jnp.abs({x}) + 0.5)")
    else:
        p.give(
            p.one_of(
                (
                    "jnp.clip({0}, None, 0.5)",
                    "jnp.clip({0}, -0.25)",
                    "jnp.round({0}, 1)",
                    "jnp.modf({0})[0]",
                    "jnp.frexp({0})[1]",
                    "jnp.ldexp({0}, 3)",
                    "jnp.where({0} > 0, {0}, jnp.nan)",
                    "{0} ** 3",
                    "{0} ** -2",
                    "{0} ** 0.5",
                    "2.5 ** {0}",
                    "jnp.unwrap({0}.ravel())",
                    "jnp.angle({0})",
                    "jnp.spacing(jnp.float32(1)) * {0}",
                    "jnp.nanmax({0} * jnp.where({0} > 9, jnp.nan, 1))",
                )
            ).format(x)
        )
    return None


BINARY = ("add", "subtract", "multiply", "true_divide", "maximum", "minimum", "arctan2", "hypot")
BINARY += ("logaddexp", "logaddexp2", "fmax", "fmin")


def binary(p: Plain) -> None:
    dims = p.dims()
    first, second = p.one_of(FLOATS), p.one_of(("f32", "bf16", "f16", "s8", "u16", "s32", "pred"))
    x, y = p.given(first, dims), p.given(second, p.against(dims))
    name = p.one_of(BINARY)
    if second == "pred" and name == "subtract":
        name = "add"
    pair = (x, y) if p.chance(0.5) else (y, x)
    p.give(f"jnp.{name}({', '.join(pair)})")


COMPARED = "equal not_equal less less_equal greater greater_equal maximum minimum isclose"
ON_INTEGERS = (
    "floor_divide remainder fmod bitwise_and bitwise_or bitwise_xor left_shift right_shift gcd lcm add subtract "
)
ON_INTEGERS += "multiply power"


ON_ONE = ("abs", "sign", "invert", "square", "negative", "bitwise_count", "logical_not", "isinf")


def binary_whole(p: Plain) -> None:
    dims = p.dims()
    kind = p.one_of(("compared", "integers", "integers", "logical", "unary", "floored", "divmod"))
    x = p.given(first := p.one_of(INTEGERS if kind != "floored" else FLOATS), dims, True)
    if kind == "unary":
        p.give(f"jnp.{p.one_of(ON_ONE)}({x})")
        return
    y = p.given(p.one_of((first, first, "s32", "u8", "pred")), p.against(dims), True)
    if kind == "compared":
        p.give(f"jnp.{p.one_of(COMPARED.split())}({x}, {y})")
    elif kind == "logical":
        p.give(f"jnp.logical_{p.one_of(('and', 'or', 'xor'))}({x} > 0, {y})")
    elif kind == "floored":
        p.give(f"jnp.{p.one_of(('floor_divide', 'remainder', 'fmod'))}({x}, {y} * 2 + 1)")
    elif kind == "divmod":
        p.give(f"jnp.divmod({x}, jnp.abs({y}.astype(T['s8'])) + 1)[{p.some(0, 1)}]")
    else:
        name = p.one_of(ON_INTEGERS.split())
        y = {
            "left_shift": f"jnp.abs({y} + 0) % 7",
            "right_shift": f"jnp.abs({y} + 0) % 7",
            "power": f"jnp.abs({y} + 0)",
        }.get(name, f"({y} + 0 * 1)")
        if name in ("floor_divide", "remainder", "fmod"):
            y = f"({y} * 2 + 1)"
        p.give(f"jnp.{name}({x}, {y})")


FOLDS = ("sum", "mean", "max", "min", "std", "var", "prod", "nansum", "nanmean", "nanmax", "nanstd")
FOLDS += ("logsumexp", "norm", "average", "ptp", "amax")
WHOLE_FOLDS = ("sum", "max", "min", "any", "all", "argmax", "argmin", "count_nonzero", "cumsum", "cumprod")
WHOLE_FOLDS += ("cummax", "cummin", "median", "ptp")


def fold(p: Plain) -> None:
    dims = p.dims(empty=False)
    x, axes = p.given(p.one_of(FLOATS), dims), p.axes(dims)
    kept = f", keepdims={p.chance(0.5)}"
    name = p.one_of(FOLDS)
    where = (
        f"({p.given('pred', p.against(dims))}).at[...].set(True)" if p.chance(0.1) else p.given("pred", p.against(dims))
    )
    if name == "logsumexp":
        p.give(
            f"jax.nn.logsumexp({x}, axis={axes}{kept}" + f", b={p.given('f32', dims)} ** 2 + 1" * p.chance(0.3) + ")"
        )
    elif name == "norm":
        p.give(f"jnp.linalg.norm({x}.reshape(-1), {p.one_of((None, 1, 2, 'jnp.inf', 3))})")
    elif name == "average":
        p.give(f"jnp.average({x}, {axes}, weights=jnp.abs({p.given('f32', dims)}) + 1{kept})")
    elif name == "prod":
        p.give(f"jnp.prod(jnp.cos({x}) + 0.6, {axes}{kept})")
    elif name in ("sum", "mean", "max", "min", "std", "var", "nansum") and p.chance(0.5):
        start = (
            ", initial=-2"
            if name == "max"
            else ", initial=2"
            if name == "min" or (name == "sum" and p.chance(0.4))
            else ""
        )
        p.give(f"jnp.{name}({x}, {axes}{kept}{start}, where={where})")
    elif name in ("std", "var"):
        p.give(f"jnp.{name}({x}, axis={axes}, ddof={p.some(0, 1)}{kept})")
    else:
        dtype = f", dtype=T['{p.one_of(('f32', 'bf16', 'f16'))}']" if name in ("sum", "mean") and p.chance(0.3) else ""
        p.give(f"jnp.{name}({x}, {axes}{kept}{dtype})")


def fold_whole(p: Plain) -> None:
    dims = p.dims(1, empty=False)
    dtype = p.one_of((*NUMBERS, "pred"))
    x, axes, axis = p.given(dtype, dims, True), p.axes(dims), p.axis(dims)
    kept = f", keepdims={p.chance(0.5)}"
    name = p.one_of(WHOLE_FOLDS)
    if name in ("argmax", "argmin"):
        p.give(f"jnp.{name}({x}, {p.one_of((axis, None))}{kept})")
    elif name == "sum":
        wide = p.one_of(("s32", "f32", "u32", "s16")) if dtype in (*INTEGERS, "pred") else "f32"
        where = f", where={p.given('pred', p.against(dims))}" if p.chance(0.4) else ""
        p.give(f"jnp.sum({x}, {axes}, dtype=T['{wide}']{kept}{where})")
    elif name == "cumsum":
        p.give(f"jnp.cumsum({x}, {p.one_of((axis, axis, None))}, dtype=T['{p.one_of(('s32', 'f32'))}'])")
    elif name == "cumprod":
        p.give(f"jnp.cumprod(jnp.sign({x} + 0), {axis}, dtype=T['{p.one_of(('s32', 'f32'))}'])")
    elif name in ("cummax", "cummin"):
        if dtype == "pred":
            return fold_whole(p)
        p.give(f"lax.{name}({x}, {axis % len(dims)}, reverse={p.chance(0.4)})")
    elif name == "median":
        p.give(f"jnp.{p.one_of(('median', 'nanmedian'))}({x}.astype(T['f32']), {axes}{kept})")
        p.give(
            f"jnp.percentile({x}.astype(T['f32']), {p.one_of((0, 25, 50, 90.0, 100))}, {axis}{kept}, "
            f"method='{p.one_of(('linear', 'lower', 'higher', 'nearest', 'midpoint'))}')"
        )
    elif name == "ptp" and dtype == "pred":
        return fold_whole(p)
    else:
        p.give(f"jnp.{name}({x}, {axes}{kept})")
    return None


def movement(p: Plain) -> None:
    dims = p.dims(1)
    dtype = p.one_of((*NUMBERS, *SMALL, "pred"))
    x, axis, n = p.given(dtype, dims, True), p.axis(dims), len(dims)
    other = p.axis(dims)
    order = p.random.sample(range(n), n)
    step = p.one_of((-1, 1, 2, -2, 3))
    y = p.given(dtype, dims, True)
    texts = [
        f"jnp.roll({x}, {p.some(-300, 300)}, {p.one_of((axis, None))})",
        f"jnp.flip({x}, {p.axes(dims)})",
        f"jnp.moveaxis({x}, {axis}, {other})",
        f"jnp.swapaxes({x}, {axis}, {other})",
        f"jnp.expand_dims({x}, {axis})",
        f"jnp.squeeze({x}.reshape({(1, *dims, 1)}))",
        f"jnp.tile({x}, {p.one_of((2, (1, 2), (3, 1, 1), 1))})",
        f"jnp.repeat({x}, {p.some(0, 3)}, {p.one_of((axis, None))})",
        f"jnp.stack([{x}, {y}], {axis})",
        f"jnp.concatenate([{x}, {y}, {x}], {p.one_of((axis, None))})",
        f"jnp.hstack([{x}, {y}])",
        f"jnp.vstack([{x}, {y}])",
        f"jnp.dstack([{x}, {y}])",
        f"jnp.column_stack([{x}.reshape(-1), {y}.reshape(-1)])",
        f"jnp.append({x}, {y}, {axis})",
        f"jnp.ravel({x}, order='F')",
        f"{x}.reshape(-1, {dims[0]}, order='F')" if prod(dims) else f"{x}.T",
        f"{x}.transpose({order})[..., ::{step}]",
        f"{x}[::{step}, None, ...]",
        f"{x}[..., {p.some(-1, 0)}]" if dims[-1] else f"{x}.T",
        f"jnp.broadcast_to({x}, {(p.some(1, 3), *dims)})",
        f"jnp.atleast_3d({x})",
        f"jnp.resize({x}, {(p.some(1, 40), 3)})" if prod(dims) else f"{x}.T",
        f"jnp.array_split({x}, 3, {axis})[{p.some(0, 2)}]",
        f"jnp.kron({x}[..., :3], {y}[..., :2])"
        if prod(dims) < 300 and dtype != "pred"
        else f"{x}.mT"
        if n > 1
        else f"{x}",
        f"jnp.delete({x}, 0, {axis})" if dims[axis] else f"{x}",
        f"jnp.insert({x}, 0, 1, {axis})",
        f"lax.rev({x}, {tuple(order[:1])})",
        f"jnp.block([[{x}, {y}], [{y}, {x}]])",
        f"jnp.diff({x} * 1, n={p.some(1, 2)}, axis={axis})",
        f"{x}.view(T['u8'])" if dtype in ("s8", "u8") else f"{x}.flatten()",
        f"jnp.rollaxis({x}, {axis})",
        f"jnp.fliplr({x})" if n > 1 else f"jnp.diag({x}, {p.some(-2, 2)})" if dims[0] < 70 else f"{x}",
        f"jnp.roll({x}, {tuple(p.some(-9, 9) for _ in dims)}, {tuple(order)})",
        f"jnp.stack(jnp.broadcast_arrays({x}, {y}[:1]))",
        f"jnp.pad({x}, {[(p.some(0, 3), p.some(0, 3)) for _ in dims]}, constant_values={p.some(0, 1)})",
    ]
    if min(dims) > 4:
        mode = p.one_of(("edge", "reflect", "symmetric", "wrap"))
        texts += [f"jnp.pad({x}, {[(p.some(0, 3), p.some(0, 3)) for _ in dims]}, mode='{mode}')"] * 5
    if n > 1:
        k = p.some(-3, 3)
        a, b = p.random.sample(range(n), 2)
        texts += [
            f"jnp.tril({x}, {k})",
            f"jnp.triu({x}, {k})",
            f"jnp.rot90({x}, {k}, {(a, b)})",
            f"jnp.diagonal({x}, {p.some(-1, 1)}, {a}, {b})",
        ]
        texts += [f"jnp.trace({x} * 1, {p.some(-1, 1)}, {a}, {b - n})"] if dtype == "s32" else []
    for text in p.random.sample(texts, p.one_of((1, 2, 3))):
        p.give(text)


def places(p: Plain) -> None:
    """Reading and writing at indices."""
    dims = p.dims(1, empty=False)
    dtype = p.one_of((*NUMBERS, *SMALL, "pred"))
    x, axis = p.given(dtype, dims, True), p.axis(dims)
    size, count, n = dims[axis], p.one_of((1, 2, 3, 7, 33)), len(dims)
    first = p.indices((count,), dims[0])
    at = axis % n
    listed = (*dims[:at], count, *dims[at + 1 :])
    grid = p.one_of(((count,), (2, 3), (count, 1), ()))
    kind = p.some(0, 13)
    mode = p.one_of(("clip", "wrap", "fill"))
    u = p.given(dtype, (count, *dims[1:]), True)
    fill = ", fill_value=1" if mode == "fill" else ""
    texts = [
        lambda: f"jnp.take({x}, {p.indices(grid, size, False)}, axis={axis}, mode='{mode}'{fill})",
        lambda: f"jnp.take_along_axis({x}, {p.indices(listed, size)}, {axis})",
        lambda: f"{x}[{first}]",
        lambda: f"{x}[..., {p.indices(grid, dims[-1])}]",
        lambda: f"{x}[{first}, ..., None]",
        lambda: (
            f"{x}.at[{first}].{p.one_of(('set', 'max', 'min')) if count == 1 else p.one_of(('max', 'min'))}({u})"
            if dtype != "pred"
            else f"{x}[{first}]"
        ),
        lambda: (
            f"{x}.at[{p.indices((count,), dims[0], False)}].{p.one_of(('add', 'max', 'min'))}({u}, mode='drop')"
            if dtype not in ("pred", "bf16", "f16")
            else f"{x}.at[0].set({u}[0])"
        ),
        lambda: f"{x}.at[{first}].get(mode='fill', fill_value=0)",
        lambda: f"{x}.at[..., ::2].set({p.some(0, 1)})",
        lambda: (
            f"{x}.at[{p.some(0, dims[0] - 1)}].{p.one_of(('set', 'add', 'max')) if dtype != 'pred' else 'set'}({u}[0])"
        ),
        lambda: f"{x}.at[:, {p.some(-1, 0)}].multiply(2)" if n > 1 and dtype != "pred" else f"{x}.at[-1].set(1)",
        lambda: f"{x}[{first}, {p.indices((count,), dims[1])}]" if n > 1 else f"{x}[{first}[::-1]]",
        lambda: f"{x}[{first}, :, {p.indices((2, count), dims[2])}]" if n > 2 else f"{x}[{first}].T",
        lambda: f"jnp.where({p.given('pred', p.against(dims))}, {x}, {p.given(dtype, p.against(dims), True)})",
    ]
    p.give(texts[kind]())


AS_WIDE = {"f32": "s32", "s32": "f32", "u32": "s32", "bf16": "u16", "f16": "s16", "s16": "f16", "u16": "bf16"}
AS_WIDE |= {"s8": "u8", "u8": "s8", "s4": "u4", "u4": "s4", "f8e4m3fn": "u8", "f8e5m2": "s8"}


def found(p: Plain) -> None:
    """Orders, places of what is found, counts, and segments."""
    dims = p.dims(1, 4, empty=False)
    dtype = p.one_of((*NUMBERS, *SMALL))
    x, axis = p.given(dtype, dims, True), p.axis(dims)
    flat, n = f"{x}.ravel()", prod(dims)
    y = p.given(p.one_of(NUMBERS), dims, True)
    sorted_ = f"jnp.sort({p.given(dtype, (p.one_of((1, 5, 40, 129)),), True)})"
    segments = p.one_of((1, 3, 9, 130))
    ids = p.indices((dims[0],), segments) if p.chance(0.5) else p.indices((dims[0],), segments, False)
    name = p.one_of(("sum", "max", "min", "prod"))
    lengths = p.one_of((1, 3, 9, 40))
    count = p.some(1, min(dims[-1], 9))
    texts = [
        f"jnp.sort({x}, {p.one_of((axis, None))}, descending={p.chance(0.4)})",
        f"jnp.argsort({x}, {axis}, stable=True, descending={p.chance(0.4)})",
        f"lax.sort(({x}, {y}, lax.broadcasted_iota(T['s32'], {dims}, {axis % len(dims)})), dimension={axis}, "
        f"num_keys={p.some(1, 2)}, is_stable=True)[{p.some(0, 2)}]",
        f"jnp.lexsort(({y}, {x}), {axis})",
        f"jax.lax.top_k({x}, {count})[{p.some(0, 1)}]",
        f"jnp.searchsorted({sorted_}, {x}, side='{p.one_of(('left', 'right'))}', "
        f"method='{p.one_of(('scan', 'scan_unrolled', 'sort', 'compare_all'))}')",
        f"jnp.digitize({x}, jnp.array({[0, 1, 3] if dtype.startswith('u') else [-2, 0, 1, 3]}, T['{dtype}']))",
        f"jnp.bincount(jnp.abs({p.given('s32', (n,), True)}), length={lengths})",
        f"jnp.histogram({flat}.astype(T['f32']), bins={lengths}, range=(-3.5, 3.5))[0]",
        f"jnp.unique({flat}, size={lengths}, fill_value=0)",
        f"jnp.nonzero({x}, size={lengths}, fill_value=-1)[{p.some(0, len(dims) - 1)}]",
        f"jnp.flatnonzero({x}, size={lengths})",
        f"jnp.isin({x}, {y}.ravel()[:{lengths}])",
        f"jnp.partition({x}, {p.some(0, dims[axis] - 1)}, {axis}).{p.one_of(('max', 'sum'))}({axis})"
        if dtype in ("f32", "s32")
        else f"{x}",
        f"jax.ops.segment_{name}({f'jnp.sign({x})' if name == 'prod' else x}, {ids}, num_segments={segments})"
        if dtype in ("f32", "s32", "u32", "s16")
        else f"{x}",
        f"jnp.interp({x}.astype(T['f32']), jnp.arange(-3, 4).astype(T['f32']), jnp.arange(7).astype(T['f32']) * 2)",
        f"jnp.select([{x} > 1, {y} > 0], [{x}, {x} * 0], 1)",
        f"jnp.piecewise({x}.astype(T['f32']), [{x} < 0, {x} > 1], [lambda t: -t, 3.0, lambda t: t * 2])",
        f"jnp.packbits({x} > 0, axis={axis}, bitorder='{p.one_of(('big', 'little'))}')",
        f"jnp.unpackbits(jnp.abs({x}).astype(T['u8']), axis={axis}, bitorder='{p.one_of(('big', 'little'))}')",
        f"jax.nn.one_hot({x}.astype(T['s32']), {lengths}, axis={p.one_of((-1, 0))}, "
        f"dtype=T['{p.one_of(('f32', 'bf16', 's8'))}'])",
        f"lax.bitcast_convert_type({x}, T['{AS_WIDE[dtype]}'])",
        f"lax.clz({x})" if dtype in INTEGERS else f"lax.is_finite({x})",
        f"jnp.array_equal({x}, {y})",
        f"jnp.allclose({x}, {x})",
        f"jnp.nanargmax({x}.astype(T['f32']), {axis})",
        f"jnp.unravel_index(jnp.abs({x}.astype(T['s32'])), (3, 4))[0]",
        f"jnp.setdiff1d({flat}, {y}.ravel()[:3], size={lengths}, fill_value=9)",
        f"jnp.rint({x} * 0.5).astype(T['s8'])",
        f"jnp.trapezoid({x}.astype(T['f32']), axis={axis})",
        f"jnp.extract({x} > 0, {x}, size={lengths}, fill_value=0)",
    ]
    p.give(p.one_of(texts))


REAL = (unary, unary, binary, fold, fold)
WHOLE = (binary_whole, fold_whole, movement, movement, places, places, found, found)
