"""Formats are told apart by content; what is no module is refused by name; StableHLO comes in through jaxlib."""

import gzip
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo
from opcode_texts import TEXTS

from neuronx_cc.hlo_import import load_module
from neuronx_cc.hlo_import.load import detect
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError, NeuronError, UsageError

LOWERED = jax.jit(lambda x: (jnp.tanh(x) @ x, x[0])).lower(jnp.ones((3, 3)))


def bytecode() -> bytes:
    from io import BytesIO

    out = BytesIO()
    LOWERED.compiler_ir("stablehlo").operation.write_bytecode(out)
    return out.getvalue()


FORMS = {
    "text": lambda: LOWERED.compiler_ir("hlo").as_hlo_text(print_large_constants=True).encode(),
    "commented text": lambda: b"// by hand\n/* two\nlines */ " + FORMS["text"](),
    "module proto": lambda: LOWERED.compiler_ir("hlo").as_serialized_hlo_module_proto(),
    "hlo proto": lambda: _wrapped(LOWERED.compiler_ir("hlo").as_serialized_hlo_module_proto()),
    "stablehlo text": lambda: str(LOWERED.compiler_ir("stablehlo")).encode(),
    "stablehlo bytecode": bytecode,
    "portable artifact": lambda: stablehlo.serialize_portable_artifact(
        LOWERED.compiler_ir("stablehlo"), stablehlo.get_current_version()
    ),
}


def _wrapped(module: bytes) -> bytes:
    """An HloProto whose field 1 is ``module``."""
    size, length = len(module), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([0x0A, *length, size]) + module


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_ops(form: str) -> None:
    module = load_module(FORMS[form](), "f")
    opcodes = [op.opcode for one in module.computations() for op in one.block.ops if isinstance(op, hlo.HloOp)]
    assert sorted(opcodes) == ["dot", "reshape", "slice", "tanh", "tuple"]
    assert [str(argument.type.data) for argument in module.entry.block.args] == ["f32[3,3]"]  # type: ignore[attr-defined]


REFUSED = {
    "an empty file": b"",
    "a file of blanks": b" \n\n",
    "text that begins with 'hello'": b"hello\nworld",
    "a gzip file": gzip.compress(b"HloModule m"),
    "an ELF binary": b"\x7fELF\x02\x01\x01",
    "a NEFF": bytes(1024) + b"\x1f\x8b\x08",
    "such as a NEFF": bytes(1024 + 257) + b"ustar\x0000" + bytes(600),
    "byte order mark": b"\xef\xbb\xbfHloModule m",
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_files_are_named(what: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_module(REFUSED[what], "x.hlo")
    assert what in caught.value.message
    assert "HLO text" in caught.value.message
    assert caught.value.remedy


def test_random_bytes_are_no_proto() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        with pytest.raises(NeuronError, match="expected a"):
            load_module(random.bytes(200), "x.pb")


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(CompileError, match=r"x\.hlo:3: expected UTF-8"):
        load_module(b"HloModule m\n\n\xff\xfe", "x.hlo")


def test_malformed_stablehlo_shows_its_place() -> None:
    with pytest.raises(CompileError) as caught:
        load_module(b"module {\n  func.func @main() { foo }\n}\n", "x.mlir")
    assert caught.value.message.startswith("x.mlir:2:23: custom op 'foo' is unknown")
    assert caught.value.message.endswith("^")


def test_dynamic_stablehlo_is_refused() -> None:
    text = b"func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> { return %a : tensor<?x4xf32> }"
    with pytest.raises(CompileError) as caught:
        load_module(text, "x.mlir")
    assert caught.value.code == "EMOD025"


def test_text_locations_name_the_file() -> None:
    text = b"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  %0 = stablehlo.sine %a : tensor<4xf32>\n"
    module = load_module(text + b"  return %0 : tensor<4xf32>\n}", "x.mlir")
    op = module.entry.block.first_op
    assert isinstance(op, hlo.SineOp)
    assert (op.loc.source_file, op.loc.source_line) == ("x.mlir", 2)


@pytest.mark.parametrize("form", ["text", "module proto"])
def test_text_and_proto_need_no_jax(form: str) -> None:
    script = (
        "import sys; from neuronx_cc.hlo_import import load_module\n"
        "from neuronx_cc.hlo_import.printer import print_module\n"
        "print_module(load_module(sys.stdin.buffer.read()))\n"
        "assert not {'jax', 'jaxlib', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], input=FORMS[form](), check=True)


def test_constants_of_protos_are_views_of_the_file() -> None:
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    lowered = jax.jit(lambda x: x + values).lower(jnp.zeros(100_000))
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    module = load_module(data)
    op = next(op for op in module.entry.block.ops if isinstance(op, hlo.ConstantOp))
    array = module.constants[op.value.data]
    np.testing.assert_array_equal(array, values)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_detection_by_content() -> None:
    assert detect(TEXTS["add"].encode()) == "text"
    assert detect(b"// x\nHloModule m") == "text"
    assert detect(FORMS["stablehlo bytecode"]()) == "stablehlo"
    assert detect(FORMS["stablehlo text"]()) == "stablehlo"
    assert detect(FORMS["module proto"]()) == "proto"


def test_printing_keeps_a_stablehlo_module() -> None:
    module = load_module(FORMS["stablehlo text"]())
    assert print_module(load_module(print_module(module).encode())) == print_module(module)
