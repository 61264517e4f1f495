"""Contractions: every form of dimension numbers, sizes around the limits of TensorE, all element types."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, assert_close, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.dots import placement
from neuronx_cc.codegen.dots import stage as dot_stage
from neuronx_cc.codegen.dots.candidates import candidates
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.schedule import Schedule
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.runtime.executable import Executable

Array = np.ndarray[Any, Any]

SMALL = {"b": 3, "c": 2, "m": 5, "n": 7, "k": 11, "l": 4, "p": 6, "q": 9}
SIZES = {
    "small": SMALL,
    "odd": {**SMALL, "m": 131, "n": 257, "k": 130},
    "one term": {**SMALL, "k": 1, "l": 1},
    "vectors": {**SMALL, "m": 1, "n": 1},
    "no term": {**SMALL, "k": 0},
    "nothing": {**SMALL, "m": 0},
    "wide": {**SMALL, "k": 257, "l": 3, "m": 40, "n": 513},
}
FORMS = (
    "mk,kn km,kn mk,nk km,nk k,k k,kn mk,k m,n b,b bk,bk bmk,bkn mbk,kbn kmb,nbk bcmk,bckn cmbk,kcnb mkl,kln "
    "klm,nlk lmk,knl mpk,kn mpk,nk mkp,nkq bmpkl,bnlk bm,bn m, kml,kln bkc,cbk pmk,kqn"
)
"""Letters of both operands: b and c batch, k and l contract, the others stay."""
NUMERIC = [
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float16"),
    ("float16", "float16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("float16", "bfloat16", "float32"),
    ("float8_e5m2", "float8_e5m2", "float32"),
    ("float8_e4m3", "float8_e4m3", "float32"),
    ("int8", "int8", "int32"),
    ("int8", "int8", "int8"),
    ("uint8", "uint8", "int32"),
    ("uint8", "int8", "int32"),
    ("int16", "int16", "int32"),
]


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


def dimension_numbers(lhs: str, rhs: str) -> Any:
    shared = [letter for letter in lhs if letter in rhs]
    batch = [letter for letter in shared if letter in "bc"]
    folded = [letter for letter in shared if letter not in "bc"]
    return tuple(([lhs.index(x) for x in group], [rhs.index(x) for x in group]) for group in (folded, batch))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("form", FORMS.split())
def test_forms(form: str, sizes: str, random: np.random.Generator) -> None:
    lhs, rhs = form.split(",")
    numbers = dimension_numbers(lhs, rhs)
    x, y = (normal(random, *(SIZES[sizes][letter] for letter in side)) for side in (lhs, rhs))
    check_function(lambda x, y: lax.dot_general(x, y, numbers), x, y)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("k", [131, 257])
@pytest.mark.parametrize("form", ["mkl,nlk", "mlk,nlk", "klm,nlk"])
def test_two_contracted_dims(form: str, k: int, constant: bool, random: np.random.Generator) -> None:
    """A prime number of terms on the partitions for each of the other dim's, in 16-bit types."""
    lhs, rhs = form.split(",")
    numbers = dimension_numbers(lhs, rhs)
    sizes = {**SMALL, "k": k, "l": 3, "m": 37}
    x, y = (normal(random, *(sizes[letter] for letter in side)).astype(ml_dtypes.bfloat16) for side in (lhs, rhs))
    if constant:
        check_function(lambda x: lax.dot_general(x, jnp.asarray(y), numbers), x)
    else:
        check_function(lambda x, y: lax.dot_general(x, y, numbers), x, y)


def test_two_contracted_dims_take_few_products(random: np.random.Generator) -> None:
    numbers = dimension_numbers("mkl", "nlk")
    x, y = normal(random, 40, 257, 3), normal(random, 50, 3, 257)
    compiled = compile_text(text_of(lambda x, y: lax.dot_general(x, y, numbers), x, y))
    report = Executable.from_program(compiled.program, compiled.constants).run([x, y]).report
    assert report.summary["matmul_instruction_count"] < 60


@pytest.mark.parametrize("form", FORMS.split())
def test_forms_between_other_kernels(form: str, random: np.random.Generator) -> None:
    """Operands that code generation may keep on chip, a result that is read there."""
    lhs, rhs = form.split(",")
    numbers = dimension_numbers(lhs, rhs)
    sizes = {**SMALL, "m": 33, "k": 65}
    x, y = (normal(random, *(sizes[letter] for letter in side)) for side in (lhs, rhs))
    check_function(lambda x, y: lax.dot_general(x * 2, jnp.tanh(y), numbers) + 1, x, y)


@pytest.mark.parametrize("types", NUMERIC, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(5, 11, 7), (131, 257, 129)])
def test_types(types: tuple[str, str, str], m: int, k: int, n: int, random: np.random.Generator) -> None:
    left, right, out = (np.dtype(getattr(ml_dtypes, name, name)) for name in types)

    def operand(dtype: np.dtype[Any], *dims: int) -> Array:
        if dtype.kind in "iu":
            return random.integers(0 if dtype.kind == "u" else -100, 100, dims).astype(dtype)
        return random.standard_normal(dims).astype(dtype)

    def function(x: Any, y: Any) -> Any:
        transposed = lax.dot_general(x, y.T, (((1,), (1,)), ((), ())), preferred_element_type=out)
        return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=out), transposed

    check_function(function, operand(left, m, k), operand(right, k, n))


def test_integer_sums_of_too_many_terms_are_refused() -> None:
    x = np.ones((1, 1 << 19), np.int32)
    with pytest.raises(CompileError, match=r"EVRF035"):
        compile_text(text_of(lambda x: x @ x.T, x), implicit_integer_downcast=frozenset())


@pytest.mark.parametrize(
    ("m", "k", "n"), [(64, 40_000, 30), (600, 700, 800), (1, 5000, 1), (2000, 3, 2), (3, 2, 70_000)]
)
def test_large(m: int, k: int, n: int, random: np.random.Generator) -> None:
    check_function(lambda x, y: jax.nn.relu(x @ y), normal(random, m, k), normal(random, k, n))


def test_chain(random: np.random.Generator) -> None:
    def function(x: Any, w: Any, u: Any, b: Any) -> Any:
        hidden = jax.nn.gelu(x @ w + b)
        return hidden @ u, (hidden.T @ hidden)[:3], x + hidden @ u

    shapes = [(129, 257), (257, 511), (511, 257), (511,)]
    check_function(function, *(normal(random, *dims) / 8 for dims in shapes))


def test_attention(random: np.random.Generator) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / 8)
        return jnp.einsum("hqk,khd->qhd", weights, v)

    check_function(function, *(normal(random, 129, 5, 64) for _ in range(3)))


def test_rows_in_another_order(random: np.random.Generator) -> None:
    """Rows of the result that are neighbours on the partitions come from different places of the operand."""

    def function(y: Any, x: Any) -> Any:
        transposed = y.reshape(2, 2, 2, 2, 4).transpose(2, 0, 3, 1, 4).reshape(2, 4, 8)
        return jnp.einsum("kmp,cnk->mpcn", transposed, x).transpose(2, 0, 3, 1)

    check_function(function, normal(random, 4, 2, 2, 4), normal(random, 4, 2, 2))


SPECIAL = np.array([[1, np.inf, 0], [np.nan, 1, 2], [0, 0, 0]], np.float32)


def test_special_values() -> None:
    check_function(lambda x, y: x.T @ y, SPECIAL, np.arange(12, dtype=np.float32).reshape(3, 4))


def test_special_values_in_rows() -> None:
    check_function(lambda x, y: x @ y, SPECIAL, np.ones((3, 4), np.float32))


@pytest.mark.parametrize("types", ["bool,bool,bool", "bool,bool,int32", "bool,bool,float32", "bool,float32,float32"])
def test_bools(types: str) -> None:
    left, right, result = types.split(",")
    values = [np.arange(40 * 5).reshape(5, 40) % 7 == step for step in range(2)]
    operands = (values[0].astype(left), values[1].T.astype(right))
    check_function(lambda x, y: lax.dot(x, y, preferred_element_type=np.dtype(result)), *operands)


SUMS = {
    "array": (lambda x, w, a: x @ w + a, (300, 40), (40, 700), (300, 700)),
    "first": (lambda x, w, a: a + x @ w, (30, 40), (40, 70), (30, 70)),
    "long bias": (lambda x, w, a: x @ w + a, (300, 40), (40, 700), (700,)),
    "bias of many rows": (lambda x, w, a: jnp.einsum("bmk,kn->bmn", x, w) + a, (5, 90, 40), (40, 70), (70,)),
    "column": (lambda x, w, a: x @ w + a, (300, 40), (40, 70), (300, 1)),
    "batch": (lambda x, w, a: jnp.einsum("bmk,bkn->bmn", x, w) + a, (3, 20, 40), (3, 40, 70), (3, 20, 70)),
    "transposed": (lambda x, w, a: x @ w + a.T, (30, 40), (40, 70), (70, 30)),
    "window": (lambda x, w, a: x @ w + a[3:33, 5:75], (30, 40), (40, 70), (40, 90)),
    "shaped": (lambda x, w, a: x @ w + a.reshape(30, 70), (30, 40), (40, 70), (5, 42, 10)),
    "two blocks of terms": (lambda x, w, a: x @ w + a, (8, 40_000), (40_000, 24), (8, 24)),
    "computed": (lambda x, w, a: x @ w + jnp.exp(a), (30, 40), (40, 70), (30, 70)),
    "another product": (lambda x, w, a: x @ w + a @ w, (30, 40), (40, 70), (30, 40)),
    "other columns": (lambda x, w, a: jnp.einsum("mk,kpq->mpq", x, w) + a, (6, 33), (33, 3, 40), (6, 3, 40)),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str, random: np.random.Generator) -> None:
    """What is added to a product, alone and before a product that reads it."""
    function, *dims = SUMS[name]
    inputs = [normal(random, *each) for each in dims]
    check_function(function, *inputs, relative=2e-5)
    check_function(lambda *inputs: function(*inputs) @ jnp.ones(function(*inputs).shape[-1]), *inputs, relative=5e-5)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_narrow_floats(name: str, dtype: Any, random: np.random.Generator) -> None:
    function, *dims = SUMS[name]
    inputs = [(normal(random, *each) / 4).astype(dtype) for each in dims]
    check_function(lambda *inputs: jax.nn.silu(function(*inputs)), *inputs, relative=3e-2)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrow_rows_are_one_more_product(dtype: Any, random: np.random.Generator) -> None:
    x, w, row = ((normal(random, *dims) / 4).astype(dtype) for dims in ((40, 64), (64, 300), (300,)))
    row[:3] = np.inf, -np.inf, np.nan
    compiled = check_function(lambda x, w, row: jax.nn.relu(x @ w + row), x, w, row, relative=1e-2)
    made = [record for record in compiled.program.records if isinstance(record, Instr)]
    added = [record for record in made if "accumulate" in record.flags and record.ins[0].dims[0][0] == 1]
    assert added
    assert not any(record.alu == ("add",) for record in made)


@pytest.mark.parametrize(("m", "k", "n"), [(1536, 200, 60), (768, 128, 128), (384, 60, 7)])
def test_rows_of_a_resident_result_are_staged_together(m: int, k: int, n: int, random: np.random.Generator) -> None:
    """Rows of lhs that are neighbours in memory come in long runs, several tiles of the result at once."""
    inputs = [normal(random, k, m), normal(random, k, n)]
    compiled = check_function(lambda w, x: jnp.tanh(jnp.tanh(w.T @ x)), *inputs, relative=5e-5)
    moves = [record for record in compiled.program.records if isinstance(record, Instr) and record.op == "dma_copy"]
    assert max(move.outs[0].counts[-1] for move in moves) >= 384


CONSTANT_ROWS = {
    "normal": (normal(np.random.default_rng(4), 600), "bf16"),
    "wide range": (np.float32(1.0 / 3) * np.float32(2.0) ** np.arange(-100, 100), "bf16"),
    "subnormal": (np.float32(1e-41) * np.arange(1, 9, dtype=np.float32), "f32"),
    "infinite": (np.float32([1, np.inf, -np.inf, 3]), "f32"),
}


@pytest.mark.parametrize("name", CONSTANT_ROWS)
def test_constant_rows_are_added_exactly(name: str) -> None:
    """As three rows of bf16 where these make up the row, which takes a quarter of the time."""
    row, dtype = CONSTANT_ROWS[name]
    function = lambda x, w: x @ w + row  # noqa: E731
    zeros = np.zeros((5, 9), np.float32), np.zeros((9, len(row)), np.float32)
    compiled = compile_text(text_of(function, *zeros))
    (result,) = compiled.run(list(zeros))
    np.testing.assert_array_equal(result, np.broadcast_to(row, result.shape))
    moved = [record for record in compiled.program.records if isinstance(record, Instr) and "multiply" in record.op]
    assert {record.ins[0].dtype for record in moved if "accumulate" in record.flags} == {dtype}


def test_batches_with_rows_on_the_partitions(random: np.random.Generator) -> None:
    """Each batch is staged ahead of the product of the one before; all of them are right."""
    inputs = [normal(random, 12, 100, 64), normal(random, 12, 90, 64)]
    check_function(lambda x, y: jnp.einsum("bmk,bnk->bmn", jnp.tanh(x), jnp.tanh(y)), *inputs)
    check_function(lambda x, y: jnp.einsum("bmk,bnk->bmn", x, y), *inputs)


def test_blocks_of_both_operands(random: np.random.Generator) -> None:
    """Several blocks of rows and of columns, in straight lines and in loops."""
    check_function(lambda x, y: x @ y, normal(random, 900, 700), normal(random, 700, 3000))
    check_function(lambda x, y: jnp.einsum("mk,nk->mn", x, y), normal(random, 700, 900), normal(random, 900, 900))


@pytest.mark.parametrize(
    ("form", "m", "k", "n"),
    [
        ("mk,kn", 1000, 500, 1300),
        ("mk,nk", 1100, 500, 700),
        ("mk,kn", 700, 520, 1100),
        ("mk,kn", 2100, 300, 3400),
        ("mpk,kn", 130, 500, 900),
    ],
)
def test_transposed_blocks_are_kept(
    form: str, m: int, k: int, n: int, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that stream past the other operand's several times are transposed once, and kept in HBM."""
    machine = TRN1.with_settings(["memory.sbuf_partition_bytes=49152"])
    kept = []
    block = dot_stage.KeptBlocks.block
    monkeypatch.setattr(dot_stage.KeptBlocks, "block", lambda *args: kept.append(args[0].operand.name) or block(*args))

    def choose(planner: Planner, problem: Problem) -> Schedule:
        found = candidates(problem, planner.timing)
        return next(each for each in found if each.lhs.kept or each.rhs.kept)

    monkeypatch.setattr(Planner, "choose", choose)
    monkeypatch.setattr(placement, "copies_of", lambda *_: ((), 0.0))
    sizes = {"m": m, "k": k, "n": n, "p": 11}
    inputs = [normal(random, *(sizes[letter] for letter in operand)) for operand in form.split(",")]
    out = "".join(sorted({*form} - {*"k,"}, key="mpn".index))
    check_function(lambda x, y: jnp.einsum(f"{form}->{out}", x, y), *inputs, relative=1e-4, machine=machine)
    assert kept


@pytest.mark.parametrize("size", [8193, 20_000, 65_536, 100_003])
def test_long_vectors(size: int, random: np.random.Generator) -> None:
    x, y = random.standard_normal((2, size), np.float32)
    check_function(lambda x, y: (jnp.dot(-x, y), jnp.dot(x[None], jnp.exp(y)[:, None])), x, y, relative=1e-4)


@pytest.mark.parametrize(
    ("lhs", "rows"), [((300, 64, 6), 128), ((425, 35, 33), 130), ((280, 35, 17), 16), ((425, 64, 64), 128)]
)
def test_blocks_staged_in_loops_and_after_them(lhs: tuple[int, ...], rows: int, random: np.random.Generator) -> None:
    """The blocks of a loop take turns by its register, those after it by themselves: none meets an unread one."""
    x, w = random.standard_normal(lhs, np.float32), random.standard_normal((rows, lhs[1]), np.float32)
    check_function(lambda x, w: jnp.einsum("mkj,nk->mjn", x, w), x, w)


def test_many_loops_in_one_share_their_registers(random: np.random.Generator) -> None:
    """Each bank of transposes is a loop, in blocks of k of which several are written out."""
    x, w = (random.standard_normal((rows, 65_536), np.float32) for rows in (256, 96))
    compiled = compile_text(text_of(lambda x, w: x @ w.T, x, w), auto_cast="matmult")
    (result,) = compiled.run([x, w])
    exact = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ w.astype(ml_dtypes.bfloat16).astype(np.float64).T
    assert_close(result, exact.astype(np.float32))
