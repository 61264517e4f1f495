"""Programs that grow in one way each, as HLO text: what compile time may depend on, beside the mix of ops.

``FORMS[name](n)`` has about ``n`` instructions, operands or computations of the kind that the name says.
"""

from collections.abc import Callable, Sequence

ADD = "add_f { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }\n"
MAX = "max_f { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] maximum(x, y) }\n"
UNARY = ("tanh", "negate", "cosine", "abs", "exponential-minus-one")
BINARY = ("add", "multiply", "maximum", "subtract")


def _module(lines: Sequence[str], bodies: str = "") -> str:
    return f"HloModule m\n{bodies}ENTRY main {{\n  " + "\n  ".join(lines) + "\n}\n"


def _tuple(types: Sequence[str], names: Sequence[str]) -> str:
    return f"ROOT out = ({', '.join(types)}) tuple({', '.join(names)})"


def chain(n: int) -> str:
    """One op on another, on a row."""
    lines = ["v0 = f32[256] parameter(0)", *(f"v{i + 1} = f32[256] {UNARY[i % 5]}(v{i})" for i in range(n))]
    return _module([*lines, f"ROOT out = f32[256] negate(v{n})"])


def chain_of_shapes(n: int) -> str:
    """Transposes between the ops, so that each stands alone."""
    lines = ["v0 = f32[8,16] parameter(0)"]
    for i in range(n // 2):
        a, b = ("8,16", "16,8") if i % 2 == 0 else ("16,8", "8,16")
        lines += [f"u_{i} = f32[{a}] {UNARY[i % 5]}(v{i})", f"v{i + 1} = f32[{b}] transpose(u_{i}), dimensions={{1,0}}"]
    shape = "16,8" if (n // 2) % 2 else "8,16"
    return _module([*lines, f"ROOT out = f32[{shape}] negate(v{n // 2})"])


def ladder(n: int) -> str:
    """Each op reads the two before it."""
    lines = ["v0 = f32[256] parameter(0)", "v1 = f32[256] parameter(1)"]
    lines += [f"v{i + 2} = f32[256] {BINARY[i % 4]}(v{i}, v{i + 1})" for i in range(n)]
    return _module([*lines, f"ROOT out = f32[256] negate(v{n + 1})"])


def scalars(n: int) -> str:
    """A chain of scalars."""
    lines = ["v0 = f32[] parameter(0)", *(f"v{i + 1} = f32[] {UNARY[i % 5]}(v{i})" for i in range(n))]
    return _module([*lines, f"ROOT out = f32[] negate(v{n})"])


def fan_out(n: int) -> str:
    """One value with very many readers, whose results are all returned."""
    lines = ["x = f32[256] parameter(0)", "y = f32[256] tanh(x)"]
    lines += [f"c_{i} = f32[] constant({i}.5)" for i in range(n // 3)]
    lines += [f"b{i} = f32[256] broadcast(c_{i}), dimensions={{}}" for i in range(n // 3)]
    lines += [f"v{i} = f32[256] add(y, b{i})" for i in range(n // 3)]
    return _module([*lines, _tuple(["f32[256]"] * (n // 3), [f"v{i}" for i in range(n // 3)])])


def fan_in(n: int) -> str:
    """Many parameters, summed in a tree."""
    lines = [f"p{i} = f32[64] parameter({i})" for i in range(n // 2)]
    level, made = [f"p{i}" for i in range(n // 2)], 0
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            lines.append(f"s_{made} = f32[64] add({left}, {right})")
            above.append(f"s_{made}")
            made += 1
        level = above + level[len(above) * 2 :]
    return _module([*lines, f"ROOT out = f32[64] negate({level[0]})"])


def accumulate(n: int) -> str:
    """One value that takes in a new parameter each time."""
    lines = [f"p{i} = f32[64] parameter({i})" for i in range(n // 2)]
    lines += [f"s_{i} = f32[64] add({f's_{i - 1}' if i else 'p0'}, p{i})" for i in range(n // 2)]
    return _module([*lines, f"ROOT out = f32[64] negate(s_{n // 2 - 1})"])


def through(n: int) -> str:
    """Parameters and results, each with an op of its own."""
    count = n // 2
    lines = [f"p{i} = f32[8,4] parameter({i})" for i in range(count)]
    lines += [f"r{i} = f32[8,4] {UNARY[i % 5]}(p{i})" for i in range(count)]
    return _module([*lines, _tuple(["f32[8,4]"] * count, [f"r{i}" for i in range(count)])])


def handed_on(n: int) -> str:
    """Parameters returned as they are, and computed with."""
    count = n // 2
    lines = [f"p{i} = f32[8] parameter({i})" for i in range(count)]
    return _module([*lines, _tuple(["f32[8]"] * count, [f"p{i}" for i in reversed(range(count))])])


def concatenate(n: int) -> str:
    """One concatenate of n parameters' rows."""
    lines = ["x = f32[64,32] parameter(0)"]
    lines += [f"s_{i} = f32[1,32] slice(x), slice={{[{i % 64}:{i % 64 + 1}],[0:32]}}" for i in range(n)]
    return _module(
        [*lines, f"ROOT out = f32[{n},32] concatenate({', '.join(f's_{i}' for i in range(n))}), dimensions={{0}}"]
    )


def concatenate_parameters(n: int) -> str:
    """One concatenate of as many parameters, of changing widths."""
    lines = [f"p{i} = f32[4,{1 + i % 3}] parameter({i})" for i in range(n)]
    width = sum(1 + i % 3 for i in range(n))
    return _module(
        [*lines, f"ROOT out = f32[4,{width}] concatenate({', '.join(f'p{i}' for i in range(n))}), dimensions={{1}}"]
    )


def concatenate_computed(n: int) -> str:
    """One concatenate of scalars, each computed by itself (``jnp.stack`` of a list)."""
    lines = [f"p{i} = f32[] parameter({i})" for i in range(n // 3)]
    lines += [f"t{i} = f32[] {UNARY[i % 5]}(p{i})" for i in range(n // 3)]
    lines += [f"r{i} = f32[1] reshape(t{i})" for i in range(n // 3)]
    operands = ", ".join(f"r{i}" for i in range(n // 3))
    return _module([*lines, f"ROOT out = f32[{n // 3}] concatenate({operands}), dimensions={{0}}"])


def slices(n: int) -> str:
    """One array cut into as many parts, each returned after an op."""
    count = n // 2
    lines = [f"x = f32[{count},16] parameter(0)"]
    lines += [f"s_{i} = f32[1,16] slice(x), slice={{[{i}:{i + 1}],[0:16]}}" for i in range(count)]
    lines += [f"r{i} = f32[1,16] {UNARY[i % 5]}(s_{i})" for i in range(count)]
    return _module([*lines, _tuple(["f32[1,16]"] * count, [f"r{i}" for i in range(count)])])


def updates(n: int) -> str:
    """One array updated in place again and again."""
    lines = ["v0 = f32[64,16] parameter(0)", "u = f32[1,16] parameter(1)", "z = s32[] constant(0)"]
    lines += [f"c_{i} = s32[] constant({i})" for i in range(64)]
    for i in range(n):
        lines.append(f"v{i + 1} = f32[64,16] dynamic-update-slice(v{i}, u, c_{i % 64}, z)")
    return _module([*lines, f"ROOT out = f32[64,16] negate(v{n})"])


def dots(n: int) -> str:
    """Small layers, one on another: product, bias, rectifier."""
    count = max(n // 6, 1)
    lines = [
        "h0 = f32[8,32] parameter(0)",
        "zero = f32[] constant(0)",
        "zeros = f32[8,32] broadcast(zero), dimensions={}",
    ]
    for i in range(count):
        lines += [
            f"w{i} = f32[32,32] parameter({2 * i + 1})",
            f"b{i} = f32[32] parameter({2 * i + 2})",
            f"d{i} = f32[8,32] dot(h{i}, w{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            f"r{i} = f32[8,32] broadcast(b{i}), dimensions={{1}}",
            f"a{i} = f32[8,32] add(d{i}, r{i})",
            f"h{i + 1} = f32[8,32] maximum(a{i}, zeros)",
        ]
    return _module([*lines, f"ROOT out = f32[8,32] negate(h{count})"])


def dots_beside(n: int) -> str:
    """Products of one array with many, side by side."""
    count = max(n // 2, 1)
    lines = ["x = f32[8,32] parameter(0)"]
    lines += [f"w{i} = f32[32,16] parameter({i + 1})" for i in range(count)]
    lines += [
        f"d{i} = f32[8,16] dot(x, w{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}" for i in range(count)
    ]
    return _module([*lines, _tuple(["f32[8,16]"] * count, [f"d{i}" for i in range(count)])])


def attention(n: int) -> str:
    """Unrolled layers with softmax and two products each, residuals and norms: many kinds of kernels."""
    count = max(n // 30, 1)
    lines = ["h0 = f32[16,32] parameter(0)", "zero = f32[] constant(0)", "low = f32[] constant(-inf)"]
    lines += ["eps = f32[] constant(1e-5)", "many = f32[] constant(32)"]
    lines += ["e = f32[16] broadcast(eps), dimensions={}", "m = f32[16] broadcast(many), dimensions={}"]
    mm = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    for i in range(count):
        lines += [
            f"wq{i} = f32[32,32] parameter({4 * i + 1})",
            f"wk{i} = f32[32,32] parameter({4 * i + 2})",
            f"wv{i} = f32[32,32] parameter({4 * i + 3})",
            f"g{i} = f32[32] parameter({4 * i + 4})",
            f"sq{i} = f32[16,32] multiply(h{i}, h{i})",
            f"ss{i} = f32[16] reduce(sq{i}, zero), dimensions={{1}}, to_apply=add_f",
            f"mean{i} = f32[16] divide(ss{i}, m)",
            f"me{i} = f32[16] add(mean{i}, e)",
            f"rs{i} = f32[16] rsqrt(me{i})",
            f"rb{i} = f32[16,32] broadcast(rs{i}), dimensions={{0}}",
            f"nx{i} = f32[16,32] multiply(h{i}, rb{i})",
            f"gb{i} = f32[16,32] broadcast(g{i}), dimensions={{1}}",
            f"n{i} = f32[16,32] multiply(nx{i}, gb{i})",
            f"q{i} = f32[16,32] dot(n{i}, wq{i}), {mm}",
            f"k{i} = f32[16,32] dot(n{i}, wk{i}), {mm}",
            f"v{i} = f32[16,32] dot(n{i}, wv{i}), {mm}",
            f"s_{i} = f32[16,16] dot(q{i}, k{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
            f"mx{i} = f32[16] reduce(s_{i}, low), dimensions={{1}}, to_apply=max_f",
            f"mb{i} = f32[16,16] broadcast(mx{i}), dimensions={{0}}",
            f"sm{i} = f32[16,16] subtract(s_{i}, mb{i})",
            f"ex{i} = f32[16,16] exponential(sm{i})",
            f"sum{i} = f32[16] reduce(ex{i}, zero), dimensions={{1}}, to_apply=add_f",
            f"sb{i} = f32[16,16] broadcast(sum{i}), dimensions={{0}}",
            f"p{i} = f32[16,16] divide(ex{i}, sb{i})",
            f"o{i} = f32[16,32] dot(p{i}, v{i}), {mm}",
            f"h{i + 1} = f32[16,32] add(h{i}, o{i})",
        ]
    return _module([*lines, f"ROOT out = f32[16,32] negate(h{count})"], ADD + MAX)


def reductions(n: int) -> str:
    """Independent reductions of independent parameters."""
    count = n // 2
    lines = ["zero = f32[] constant(0)", *(f"p{i} = f32[16,32] parameter({i})" for i in range(count))]
    lines += [f"r{i} = f32[16] reduce(p{i}, zero), dimensions={{1}}, to_apply=add_f" for i in range(count)]
    return _module([*lines, _tuple(["f32[16]"] * count, [f"r{i}" for i in range(count)])], ADD)


def constants(n: int) -> str:
    """Different small arrays, each added to a running value."""
    count = n // 2
    lines = ["v0 = f32[4] parameter(0)"]
    lines += [f"c_{i} = f32[4] constant({{{i}, {i + 1}, 0.5, {i % 7}}})" for i in range(count)]
    lines += [f"v{i + 1} = f32[4] {BINARY[i % 4]}(v{i}, c_{i})" for i in range(count)]
    return _module([*lines, f"ROOT out = f32[4] negate(v{count})"])


def folded(n: int) -> str:
    """Ops of constants only, which are folded."""
    lines = ["v0 = f32[4] constant({1, 2, 3, 4})", "w = f32[4] constant({0.5, 0.25, 0.125, 0.1})"]
    lines += [f"v{i + 1} = f32[4] {'add' if i % 2 else 'multiply'}(v{i}, w)" for i in range(n)]
    return _module([*lines, "x = f32[4] parameter(0)", f"ROOT out = f32[4] add(v{n}, x)"])


def calls(n: int) -> str:
    """One small computation called again and again."""
    body = "f { x = f32[64] parameter(0) t = f32[64] tanh(x) ROOT r = f32[64] add(t, x) }\n"
    lines = ["v0 = f32[64] parameter(0)", *(f"v{i + 1} = f32[64] call(v{i}), to_apply=f" for i in range(n // 2))]
    return _module([*lines, f"ROOT out = f32[64] negate(v{n // 2})"], body)


def calls_nested(n: int) -> str:
    """Computations that call the next one, as deep as there are any."""
    count = n // 2
    bodies = ["f_0 { x = f32[64] parameter(0) ROOT r = f32[64] tanh(x) }"]
    for i in range(1, count):
        bodies.append(
            f"f_{i} {{ x = f32[64] parameter(0) c = f32[64] call(x), to_apply=f_{i - 1} "
            f"ROOT r = f32[64] {UNARY[i % 5]}(c) }}"
        )
    return _module(
        ["x = f32[64] parameter(0)", f"ROOT out = f32[64] call(x), to_apply=f_{count - 1}"], "\n".join(bodies) + "\n"
    )


def combiners(n: int) -> str:
    """Equal small computations, one for each reduction, as JAX writes them."""
    count = n // 5
    bodies = "".join(ADD.replace("add_f", f"add_{i}") for i in range(count))
    lines = ["zero = f32[] constant(0)", "v0 = f32[16,32] parameter(0)"]
    for i in range(count):
        lines += [
            f"r{i} = f32[16] reduce(v{i}, zero), dimensions={{1}}, to_apply=add_{i}",
            f"b{i} = f32[16,32] broadcast(r{i}), dimensions={{0}}",
            f"v{i + 1} = f32[16,32] subtract(v{i}, b{i})",
        ]
    return _module([*lines, f"ROOT out = f32[16,32] negate(v{count})"], bodies)


def _loop(number: int, inner: str = "") -> str:
    state = "(s32[], f32[64])"
    step = inner or "w = f32[64] tanh(v)"
    return f"""cond{number} {{ s = {state} parameter(0) i = s32[] get-tuple-element(s), index=0 n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT }}
body{number} {{ s = {state} parameter(0) i = s32[] get-tuple-element(s), index=0
  v = f32[64] get-tuple-element(s), index=1 one = s32[] constant(1) j = s32[] add(i, one) {step}
  ROOT r = {state} tuple(j, w) }}
"""


def loops(n: int) -> str:
    """Loops one behind another, each with computations of its own."""
    count = max(n // 14, 1)
    lines = ["zero = s32[] constant(0)", "v0 = f32[64] parameter(0)"]
    for i in range(count):
        lines += [
            f"s_{i} = (s32[], f32[64]) tuple(zero, v{i})",
            f"w{i} = (s32[], f32[64]) while(s_{i}), condition=cond{i}, body=body{i}",
            f"v{i + 1} = f32[64] get-tuple-element(w{i}), index=1",
        ]
    return _module([*lines, f"ROOT out = f32[64] negate(v{count})"], "".join(_loop(i) for i in range(count)))


def wide_loop(n: int) -> str:
    """One loop that carries many values."""
    count = n // 3
    state = f"(s32[], {', '.join(['f32[16]'] * count)})"
    body = [f"s = {state} parameter(0)", "i = s32[] get-tuple-element(s), index=0"]
    body += ["one = s32[] constant(1)", "j = s32[] add(i, one)"]
    for i in range(count):
        body += [f"g{i} = f32[16] get-tuple-element(s), index={i + 1}", f"t{i} = f32[16] {UNARY[i % 5]}(g{i})"]
    body.append(f"ROOT r = {state} tuple(j, {', '.join(f't{i}' for i in range(count))})")
    cond = [f"s = {state} parameter(0)", "i = s32[] get-tuple-element(s), index=0", "n = s32[] constant(3)"]
    cond.append("ROOT r = pred[] compare(i, n), direction=LT")
    lines = ["zero = s32[] constant(0)", *(f"p{i} = f32[16] parameter({i})" for i in range(count))]
    lines.append(f"s = {state} tuple(zero, {', '.join(f'p{i}' for i in range(count))})")
    lines.append(f"ROOT w = {state} while(s), condition=cond, body=body")
    return _module(lines, f"cond {{ {' '.join(cond)} }}\nbody {{ {' '.join(body)} }}\n")


def tuples(n: int) -> str:
    """A wide tuple taken apart and made again, again and again."""
    width = 50
    types = f"({', '.join(['f32[16]'] * width)})"
    lines = [f"a0_{i} = f32[16] parameter({i})" for i in range(width)]
    rounds = max(n // (2 * width), 1)
    for r in range(rounds):
        lines.append(f"t{r} = {types} tuple({', '.join(f'a{r}_{i}' for i in range(width))})")
        lines += [f"g{r}_{i} = f32[16] get-tuple-element(t{r}), index={(i + 1) % width}" for i in range(width)]
        lines += [f"a{r + 1}_{i} = f32[16] {UNARY[(i + r) % 5]}(g{r}_{i})" for i in range(width)]
    return _module([*lines, f"ROOT out = {types} tuple({', '.join(f'a{rounds}_{i}' for i in range(width))})"])


def branches(n: int) -> str:
    """One conditional with many branches."""
    count = max(n // 3, 2)
    bodies = "".join(
        f"b{i} {{ x = f32[64] parameter(0) t = f32[64] {UNARY[i % 5]}(x) ROOT r = f32[64] add(t, t) }}\n"
        for i in range(count)
    )
    names = ", ".join(f"b{i}" for i in range(count))
    lines = ["k = s32[] parameter(0)", "x = f32[64] parameter(1)"]
    operands = ", ".join(["x"] * count)
    return _module([*lines, f"ROOT out = f32[64] conditional(k, {operands}), branch_computations={{{names}}}"], bodies)


def collectives(n: int) -> str:
    """All-reduces of a chain of values."""
    count = n // 2
    lines = ["v0 = f32[64] parameter(0)"]
    for i in range(count):
        lines += [
            f"r{i} = f32[64] all-reduce(v{i}), replica_groups={{{{0,1}}}}, to_apply=add_f, channel_id={i + 1}",
            f"v{i + 1} = f32[64] {UNARY[i % 5]}(r{i})",
        ]
    text = _module([*lines, f"ROOT out = f32[64] negate(v{count})"], ADD)
    return text.replace("HloModule m", "HloModule m, replica_count=2")


def collectives_beside(n: int) -> str:
    """All-reduces of as many parameters, as gradients are."""
    count = n // 2
    lines = [f"p{i} = f32[64] parameter({i})" for i in range(count)]
    lines += [
        f"r{i} = f32[64] all-reduce(p{i}), replica_groups={{{{0,1}}}}, to_apply=add_f, channel_id={i + 1}"
        for i in range(count)
    ]
    text = _module([*lines, _tuple(["f32[64]"] * count, [f"r{i}" for i in range(count)])], ADD)
    return text.replace("HloModule m", "HloModule m, replica_count=2")


def gathers(n: int) -> str:
    """Rows of one table taken by run-time numbers."""
    count = max(n // 2, 1)
    lines = ["t = f32[64,16] parameter(0)", "z = s32[] constant(0)", "i0 = s32[] parameter(1)"]
    for i in range(count):
        lines.append(f"r{i} = f32[1,16] dynamic-slice(t, i{i}, z), dynamic_slice_sizes={{1,16}}")
        lines.append(f"i{i + 1} = s32[] add(i{i}, i0)")
    return _module([*lines, _tuple(["f32[1,16]"] * count, [f"r{i}" for i in range(count)])])


def mirrored(n: int) -> str:
    """A chain whose every value is wanted again on the way back, as in gradients."""
    count = n // 2
    lines = ["v0 = f32[128,64] parameter(0)", *(f"v{i + 1} = f32[128,64] {UNARY[i % 5]}(v{i})" for i in range(count))]
    lines.append(f"g{count} = f32[128,64] negate(v{count})")
    lines += [f"g{i} = f32[128,64] multiply(g{i + 1}, v{i})" for i in reversed(range(count))]
    return _module([*lines, "ROOT out = f32[128,64] negate(g0)"])


def mirrored_dots(n: int) -> str:
    """Layers and their gradients: many values that live long, more than fit on chip."""
    count = max(n // 8, 1)
    lines = ["h0 = f32[128,128] parameter(0)"]
    for i in range(count):
        lines += [
            f"w{i} = f32[128,128] parameter({i + 1})",
            f"d{i} = f32[128,128] dot(h{i}, w{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            f"h{i + 1} = f32[128,128] tanh(d{i})",
        ]
    lines.append(f"g{count} = f32[128,128] negate(h{count})")
    for i in reversed(range(count)):
        lines += [
            f"q{i} = f32[128,128] multiply(h{i + 1}, h{i + 1})",
            f"e{i} = f32[128,128] subtract(g{i + 1}, q{i})",
            f"dw{i} = f32[128,128] dot(h{i}, e{i}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}",
            f"g{i} = f32[128,128] dot(e{i}, w{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
            f"nw{i} = f32[128,128] subtract(w{i}, dw{i})",
        ]
    return _module([*lines, _tuple(["f32[128,128]"] * count, [f"nw{i}" for i in range(count)])])


def pads(n: int) -> str:
    """Pieces written into zeros and added, as gradients of slices are."""
    count = max(n // 2, 1)
    lines = ["zero = f32[] constant(0)", *(f"p{i} = f32[4] parameter({i})" for i in range(8))]
    total = ""
    for i in range(count):
        at = i % 60
        lines.append(f"q{i} = f32[64] pad(p{i % 8}, zero), padding={at}_{60 - at}")
        if total:
            lines.append(f"s_{i} = f32[64] add({total}, q{i})")
        total = f"s_{i}" if total else f"q{i}"
    return _module([*lines, f"ROOT out = f32[64] negate({total})"])


def sixty_four_bits(n: int) -> str:
    """A chain of 64-bit integers."""
    lines = ["v0 = s64[64] parameter(0)", "c = s64[] constant(3)", "b = s64[64] broadcast(c), dimensions={}"]
    lines += [
        f"v{i + 1} = s64[64] {('add', 'xor', 'and', 'subtract')[i % 4]}(v{i}, {'b' if i % 3 else 'v0'})"
        for i in range(n)
    ]
    return _module([*lines, f"ROOT out = s64[64] negate(v{n})"])


def complex_numbers(n: int) -> str:
    """A chain of complex numbers."""
    lines = ["v0 = c64[64] parameter(0)", "w = c64[64] parameter(1)"]
    lines += [f"v{i + 1} = c64[64] {BINARY[:2][i % 2]}(v{i}, w)" for i in range(n // 4)]
    return _module([*lines, f"ROOT out = c64[64] negate(v{n // 4})"])


def unused(n: int) -> str:
    """Ops that nothing uses."""
    lines = [
        "x = f32[64] parameter(0)",
        *(f"u_{i} = f32[64] {UNARY[i % 5]}({f'u_{i - 1}' if i else 'x'})" for i in range(n)),
    ]
    return _module([*lines, "ROOT out = f32[64] negate(x)"])


def repeated(n: int) -> str:
    """Pairs of equal ops, which are merged."""
    lines = ["v0 = f32[64] parameter(0)"]
    for i in range(n // 3):
        op = UNARY[i % 5]
        lines += [f"a{i} = f32[64] {op}(v{i})", f"b{i} = f32[64] {op}(v{i})", f"v{i + 1} = f32[64] add(a{i}, b{i})"]
    return _module([*lines, f"ROOT out = f32[64] negate(v{n // 3})"])


FORMS: dict[str, Callable[[int], str]] = {
    form.__name__: form
    for form in (
        chain, chain_of_shapes, ladder, scalars, fan_out, fan_in, accumulate, through, handed_on, concatenate,
        concatenate_parameters, concatenate_computed, slices, updates, dots, dots_beside, attention, reductions,
        constants, folded, calls, calls_nested, combiners, loops, wide_loop, tuples, branches, collectives,
        collectives_beside, gathers, mirrored, mirrored_dots, pads, sixty_four_bits, complex_numbers, unused, repeated,
    )
}  # fmt: skip
