"""Kernels where next to nothing is left of SBUF: they compile, or say that there is no room, and no assertion fails."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.ir.errors import CompileError

RESERVED = TRN1["sbuf.reserved_bytes"]
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "ones": lambda x: x.reshape(200, 72) + (x[0] * 2).reshape(1, 72),
    "reduction": lambda x: (x + 1)[:, ::2].max((0, 1)),
    "convolution's gradient": lambda x: jax.vjp(
        lambda k: jax.lax.conv_general_dilated(x[:9, None], k, (1, 1), "SAME"), jnp.ones((3, 1, 3, 3))
    )[1](jnp.stack([x[9:18]] * 3, 1))[0],
}


@pytest.mark.parametrize("kernel", PROGRAMS)
def test_what_has_no_room_says_so(kernel: str) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (200, 8, 9)).astype(np.float32)
    messages = []
    for room in (512, 1024, 2048, 8192):
        machine = TRN1.with_settings([f"memory.sbuf_partition_bytes={RESERVED + room}"])
        try:
            check_function(PROGRAMS[kernel], x, machine=machine)
            messages.append("")
        except CompileError as error:
            messages.append(f"{error.code}: {error.message}")
    assert all(message.startswith("EXSP001") for message in messages[:-1] if message)
    assert messages[-1] == ""
    assert any(kernel in message for message in messages), messages


@pytest.mark.parametrize("room", [1024, 2048, 4096])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1)[:, ::2].max((0, 1)),
        lambda x: x.max(1).sum(0),
        lambda x: x.prod(0),
        lambda x: jax.lax.cumsum(x.reshape(12, 1200), 1, reverse=True),
        lambda x: jax.lax.cummax(x.reshape(3, 4800), 1),
        lambda x: x.reshape(200, 72).T.reshape(-1) + 0,
        lambda x: jnp.concatenate([x.reshape(450, 32).T.reshape(-1), x.ravel()]),
    ],
    ids=["extremes", "sums", "products", "scan", "scan of few rows", "transpose", "transpose beside"],
)
def test_little_room_is_enough(function: Callable[[Any], Any], room: int) -> None:
    """For folds of a few elements at a time, and for transposes, which are copied element by element then."""
    x = np.random.default_rng(0).integers(-1, 2, (200, 8, 9)).astype(np.float32)
    check_function(function, x, machine=TRN1.with_settings([f"memory.sbuf_partition_bytes={RESERVED + room}"]))


def test_scans_of_pairs_of_words() -> None:
    """Rows are cut by what the machine holds of them, not by what another one does."""
    x = np.random.default_rng(0).integers(-(2**40), 2**40, (3, 1031))
    with jax.enable_x64(True):
        text = text_of(lambda x: jax.lax.cummax(x, axis=1, reverse=True), x)
    machine = TRN1.with_settings([f"memory.sbuf_partition_bytes={RESERVED + 22528}"])
    found = compile_text(text, machine, int64="exact").run([x])
    np.testing.assert_array_equal(found[0], np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1])
