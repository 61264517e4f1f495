"""Graphs as PyTorch/XLA writes them for the vendor's compiler, built op by op, with their gradients.

The forms are those of such graphs in the field: typed operands with layouts, transposes that turn the layout alone,
``batch-norm-training`` for layer norms, the vendor's custom calls, results of collectives as tuples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

EPSILON = 1e-5
"""Of layer norms."""


@dataclass(frozen=True, slots=True)
class Value:
    """An array of the graph; ``memory`` has its dims from the innermost one on where they are turned."""

    name: str
    dims: tuple[int, ...]
    memory: tuple[int, ...] = ()

    @property
    def type(self) -> str:
        order = ",".join(map(str, self.memory or reversed(range(len(self.dims)))))
        return f"f32[{','.join(map(str, self.dims))}]" + (f"{{{order}}}" if self.dims else "")

    def __str__(self) -> str:
        return f"{self.type} %{self.name}"


Gradient = Callable[[Value], Sequence[Value | None]]


@dataclass
class Graph:
    """HLO text that grows, and what its gradients need."""

    lines: list[str] = field(default_factory=list)
    tape: list[tuple[Value, Sequence[Value], Gradient]] = field(default_factory=list)
    parameters: int = 0

    def emit(
        self, opcode: str, dims: Sequence[int], operands: str, more: str = "", result: str = "", memory: Any = ()
    ) -> Value:
        value = Value(f"{opcode.replace('-', '_')}.{len(self.lines) + 1}", tuple(dims), tuple(memory))
        place = f'metadata={{op_type="aten__{opcode}" op_name="aten__{opcode}" source_file="layer.py" source_line=7}}'
        after = f", {more}" if more else ""
        self.lines.append(f"%{value.name} = {result or value.type} {opcode}({operands}){after}, {place}")
        return value

    def recorded(self, value: Value, operands: Sequence[Value], gradient: Gradient) -> Value:
        self.tape.append((value, operands, gradient))
        return value

    def parameter(self, dims: Sequence[int]) -> Value:
        named = f'frontend_attributes={{neff_input_names="input{self.parameters}"}}'
        self.parameters += 1
        return self.emit("parameter", dims, str(self.parameters - 1), named)

    def number(self, number: float, dims: Sequence[int]) -> Value:
        one = self.emit("constant", (), repr(number))
        return self.emit("broadcast", dims, str(one), "dimensions={}") if dims else one

    def backward(self, result: Value, gradient: Value, wanted: Sequence[Value]) -> list[Value]:
        """Gradients of ``wanted``."""
        known = {result: gradient}
        for value, operands, rule in reversed(self.tape):
            if value in known:
                for operand, each in zip(operands, rule(known[value]), strict=True):
                    if each is not None:
                        known[operand] = self.pair("add", known[operand], each) if operand in known else each
        return [known[each] for each in wanted]

    def pair(self, opcode: str, a: Value, b: Value) -> Value:
        return self.emit(opcode, a.dims, f"{a}, {b}")

    def add(self, a: Value, b: Value) -> Value:
        return self.recorded(self.pair("add", a, b), (a, b), lambda g: (g, g))

    def times(self, a: Value, b: Value) -> Value:
        value = self.pair("multiply", a, b)
        return self.recorded(value, (a, b), lambda g: (self.pair("multiply", g, b), self.pair("multiply", g, a)))

    def rows(self, vector: Value, like: Value) -> Value:
        """``vector`` for each row."""
        last = len(like.dims) - 1
        value = self.emit("broadcast", like.dims, str(vector), f"dimensions={{{last}}}")
        return self.recorded(value, (vector,), lambda g: (self.total(g, range(last)),))

    def total(self, x: Value, dims: Sequence[int]) -> Value:
        kept = [size for dim, size in enumerate(x.dims) if dim not in dims]
        zero = self.emit("constant", (), "0")
        where = f"dimensions={{{','.join(map(str, dims))}}}, to_apply=%AddComputation.1"
        return self.emit("reduce", kept, f"{x}, {zero}", where)

    def reshape(self, x: Value, dims: Sequence[int]) -> Value:
        return self.recorded(
            self.emit("reshape", dims, str(x)), (x,), lambda g: (self.emit("reshape", x.dims, str(g)),)
        )

    def turned(self, x: Value, order: Sequence[int]) -> Value:
        """A transpose, which keeps the memory: its layout is turned too."""
        dims = [x.dims[dim] for dim in order]
        memory = [order.index(dim) for dim in x.memory or reversed(range(len(order)))]
        value = self.emit("transpose", dims, str(x), f"dimensions={{{','.join(map(str, order))}}}", memory=memory)
        back = [order.index(dim) for dim in range(len(order))]
        return self.recorded(value, (x,), lambda g: (self.turned(g, back),))

    def product(self, a: Value, b: Value) -> Value:
        """Of matrices, or of as many pairs of them."""
        batch = len(a.dims) - 2
        over = "lhs_batch_dims={0}, rhs_batch_dims={0}, " if batch else ""
        dims = f"{over}lhs_contracting_dims={{{batch + 1}}}, rhs_contracting_dims={{{batch}}}"
        value = self.emit("dot", (*a.dims[:-1], b.dims[-1]), f"{a}, {b}", dims)
        swap = (*range(batch), batch + 1, batch)

        def gradient(g: Value) -> Sequence[Value | None]:
            return self.product(g, self.turned(b, swap)), self.product(self.turned(a, swap), g)

        return self.recorded(value, (a, b), gradient)

    def call(self, target: str, x: Value, backward: str, *, by_result: bool) -> Value:
        """One of the vendor's functions, whose gradient is another."""

        def custom(name: str, *given: Value) -> Value:
            how = f'custom_call_target="{name}", api_version=API_VERSION_UNSPECIFIED'
            config = f', backend_config="{len(x.dims) - 1}"' if by_result else ""
            return self.emit("custom-call", x.dims, ", ".join(map(str, given)), how + config)

        value = custom(target, x)
        return self.recorded(value, (x,), lambda g: (custom(backward, g, value if by_result else x),))

    def element(self, source: Value, types: Sequence[Value], place: int) -> Value:
        kind = f"({', '.join(each.type for each in types)})"
        return self.emit("get-tuple-element", types[place].dims, f"{kind} %{source.name}", f"index={place}")

    def several(self, opcode: str, operands: Sequence[Value], dims: Sequence[Sequence[int]], more: str) -> list[Value]:
        """A collective of several operands, or another op, whose result is a tuple."""
        types = [Value("", tuple(each)) for each in dims]
        kind = f"({', '.join(each.type for each in types)})"
        made = self.emit(opcode, (), ", ".join(map(str, operands)), more, kind)
        return [self.element(made, types, place) for place in range(len(types))]

    def norm(self, x: Value, weight: Value, shift: Value) -> Value:
        """Over rows: as a batch norm of one image whose features are the rows."""
        count, width = prod(x.dims[:-1]), x.dims[-1]
        how, shape = f"epsilon={EPSILON}, feature_index=1", (1, count, width)
        one, zero = self.number(1.0, (count,)), self.number(0.0, (count,))
        flat = self.emit("reshape", shape, str(x))
        whole, mean, variance = self.several("batch-norm-training", (flat, one, zero), (shape, (count,), (count,)), how)

        def gradient(g: Value) -> Sequence[Value | None]:
            given = (flat, one, mean, variance, self.emit("reshape", shape, str(g)))
            back = self.several("batch-norm-grad", given, (shape, (count,), (count,)), how)[0]
            return (self.emit("reshape", x.dims, str(back)),)

        normal = self.recorded(self.emit("reshape", x.dims, str(whole)), (x,), gradient)
        return self.add(self.times(normal, self.rows(weight, x)), self.rows(shift, x))

    def text(self, results: Sequence[Value]) -> str:
        kind = f"({', '.join(each.type for each in results)})"
        names = ",".join(f"output{number}" for number in range(len(results)))
        lines = [*self.lines, f"ROOT %tuple.0 = {kind} tuple({', '.join(map(str, results))}), "
                 f'frontend_attributes={{neff_output_names="{names}"}}']  # fmt: skip
        add = "%AddComputation.1 (x.2: f32[], y.3: f32[]) -> f32[] {\n  %x.2 = f32[] parameter(0)\n" \
              "  %y.3 = f32[] parameter(1)\n  ROOT %add.4 = f32[] add(f32[] %x.2, f32[] %y.3)\n}\n\n"  # fmt: skip
        given = [line.partition(" = ")[2].partition("{")[0].split()[0] for line in lines if " parameter(" in line]
        head = ", ".join(f"p{number}.1: {each}" for number, each in enumerate(given))
        name, body = f"SyncTensorsGraph.{len(lines)}", "\n  ".join(lines)
        return f"HloModule {name}\n\n{add}ENTRY %{name} ({head}) -> {kind} {{\n  {body}\n}}\n"
