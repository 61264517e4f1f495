"""Matrices of a table by number as operands of contractions, drawn by seed: layouts, types, readers, machines."""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, assert_close, check_function, compile_text, text_of
from jax import lax
from xla_oracle import run_text

from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

Array = np.ndarray[Any, Any]
EAGER = TRN1.with_settings(["dma.swdge_descriptor_ns=0.001"])
"""A machine on which small matrices are read where they lie, too."""
PRODUCTS = {
    # x, w behind the table's dim, contraction
    "rows": ("tk", "kn", "tk,tkn->tn"),
    "columns": ("tk", "nk", "tk,tnk->tn"),
    "several rows": ("tmk", "kn", "tmk,tkn->tmn"),
    "several rows, columns": ("tmk", "nk", "tmk,tnk->tmn"),
    "rows last": ("ktm", "nk", "ktm,tnk->ntm"),
    "two terms": ("tjk", "jkn", "tjk,tjkn->tn"),
    "shared rows": ("mk", "kn", "mk,tkn->mtn"),
    "matrices first": ("mk", "kn", "mk,tkn->tnm"),
}
SIZES = {"m": (1, 2, 17, 130), "k": (3, 64, 128, 130, 256), "n": (1, 5, 128, 520), "j": (2, 3)}


def tail(kind: str, made: Any, x: Any, w: Any) -> Any:
    return {
        "none": lambda: made,
        "activation": lambda: jax.nn.silu(made) * 0.5,
        "summed": lambda: made.astype(jnp.float32).sum(0),
        "table too": lambda: (made, w[0]),
    }[kind]()


def program(seed: int) -> tuple[Callable[..., Any], list[Array], Machine]:
    chooser, draw = random.Random(seed), np.random.default_rng(seed)
    x_dims, w_dims, formula = PRODUCTS[chooser.choice(list(PRODUCTS))]
    sizes = {letter: chooser.choice(choices) for letter, choices in SIZES.items()}
    count, height = chooser.choice((2, 3, 8, 33)), chooser.choice((1, 2, 5, 40))
    sizes["t"] = count
    dtype = chooser.choice((np.float32, np.float32, ml_dtypes.bfloat16, np.float16))
    x = draw.standard_normal([sizes[letter] for letter in x_dims]).astype(dtype)
    w = draw.standard_normal([height, *(sizes[letter] for letter in w_dims)]).astype(dtype)
    numbers = draw.integers(-1, height + 1, count).astype(np.int32)  # some are outside
    end, way = chooser.choice(("none", "none", "activation", "summed", "table too")), chooser.random()
    mode = chooser.choice(("clip", "clip", "fill"))
    pairs = count % 2 == 0 and way < 0.3

    def once(x: Any, w: Any, numbers: Any) -> Any:
        if pairs:
            numbers = numbers.reshape(2, count // 2)
        taken = jnp.take(w, numbers, axis=0, mode=mode).reshape(count, *w.shape[1:])
        made = jnp.einsum(formula, x, taken)
        if way > 0.85:
            made = made + jnp.einsum(formula, x * 2, taken)
        return tail(end, made, x, w)

    def in_a_loop(x: Any, w: Any, numbers: Any) -> Any:
        return lax.fori_loop(
            0, 3, lambda i, s: s + once(x, w, (numbers + i) % height), jnp.zeros_like(once(x, w, numbers))
        )

    looped = end in ("none", "activation") and 0.6 < way < 0.8
    machine = chooser.choice((TRN1, EAGER, EAGER, find_machine("tests/machines/quarter.toml")))
    return in_a_loop if looped else once, [x, w, numbers], machine


@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed: int) -> None:
    function, inputs, machine = program(seed)
    narrow = inputs[0].dtype != np.float32  # sums of rounded results
    check_function(function, *inputs, relative=1e-2 if narrow else 2e-5, machine=machine)


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_drawn_with_casts(seed: int) -> None:
    """FP32 that the DMA casts as it loads it."""
    function, inputs, machine = program(seed)
    text = text_of(function, *inputs)
    results = compile_text(text, machine, auto_cast="matmult").run(inputs)
    for result, want in zip(results, run_text(text, inputs), strict=True):
        assert_close(result, want, 3e-2)


def moved(function: Callable[..., Any], *inputs: Array) -> tuple[int, list[str]]:
    """Bytes that the queue of loads and stores moves, and the instructions with addresses found at run time."""
    program = compile_text(text_of(function, *inputs)).program
    dynamic = [record.op for record in program.records if getattr(record, "stream", None) is Stream.DMA_DYNAMIC]
    return len(program.records), dynamic


def test_large_matrices_are_read_where_they_lie() -> None:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((4, 512)).astype(np.float32), draw.standard_normal((9, 512, 512)).astype(np.float32)
    _, dynamic = moved(lambda x, w, i: jnp.einsum("tk,tkn->tn", x, w[i]), x, w, np.array([3, 1, 1, 8], np.int32))
    assert "dma_gather" not in dynamic
    assert {"reg_load", "dma_copy"} <= set(dynamic)


def test_a_table_that_is_written_meanwhile_is_not() -> None:
    """Rows are moved before the table changes."""
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((4, 256)).astype(np.float32), draw.standard_normal((9, 256, 256)).astype(np.float32)

    def function(x: Any, w: Any, i: Any) -> Any:
        table = w * 2
        taken = table[i]
        table = lax.dynamic_update_slice(table, w[:1] * 7, (i[0], 0, 0))
        return jnp.einsum("tk,tkn->tn", x, taken), table

    check_function(function, x, w, np.array([3, 1, 1, 8], np.int32), relative=2e-5)


@pytest.mark.parametrize("formula", ["tk,tkn->tn", "tkn,tk->tn", "tk,tnk->nt", "tk,tkn->nt"])
@pytest.mark.parametrize("chosen", [(), (2,)])
@pytest.mark.parametrize("count", [9, 40])
def test_matrices_that_rows_share(formula: str, chosen: tuple[int, ...], count: int) -> None:
    """More numbers than matrices, some outside of the table: rows are multiplied with all of it."""
    draw = np.random.default_rng(count)
    x, w = draw.standard_normal((count, 256)).astype(np.float32), draw.standard_normal((3, 256, 256)).astype(np.float32)
    numbers = draw.integers(-1, 5, (count, *chosen)).astype(np.int32)
    if chosen:
        formula = formula.replace("tkn", "tikn").replace("tnk", "tink").replace(">tn", ">tin").replace(">nt", ">nit")
    first, second = formula.split("->")[0].split(",")

    def function(x: Any, w: Any, numbers: Any) -> Any:
        taken = jnp.take(w, numbers, axis=0, mode="clip")
        return jnp.einsum(formula, *((x, taken) if len(first) < len(second) else (taken, x)))

    compiled = check_function(function, x, w, numbers, relative=2e-5)
    schedules = [line for line in compiled.program.schedules.values() if "k 2" in line or "k 128" in line]
    assert all(f"b {count}" not in line for line in schedules), schedules
