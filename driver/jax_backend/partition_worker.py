"""The process that partitions sharded modules: reads StableHLO from stdin, writes one device's HLO to stdout.

XLA's own partitioner does the work: jaxlib's CPU client compiles the module for as many CPU devices, the module is
taken as the pass ``spmd-partitioning`` leaves it, and the rest of that compilation is left out. A violated precondition
of XLA's aborts the process; so it runs here, not in the user's. Run as
``python -m neuronx_cc.driver.jax_backend.partition_worker``. Each message is a 4-byte length and that many bytes; a
request is a line of JSON (``Request``) and the module; the answer ``+`` with a line of JSON (``Facts``) and a
HloModuleProto, or ``-`` with an error text.
"""

import base64
import json
import os
import struct
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NotRequired, TypedDict

import numpy as np
from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined,unused-ignore]
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from neuronx_cc.driver.jax_backend.meshes import mesh_devices
from neuronx_cc.driver.jax_backend.partition_calls import Calls
from neuronx_cc.driver.jax_backend.partition_convolutions import prepare_convolutions
from neuronx_cc.driver.jax_backend.partition_loops import prepare_loops
from neuronx_cc.driver.jax_backend.partition_orders import prepare_orders
from neuronx_cc.driver.jax_backend.partition_pads import prepare_pads
from neuronx_cc.driver.jax_backend.partition_parts import prepare_parts
from neuronx_cc.driver.jax_backend.partition_reductions import prepare_reductions
from neuronx_cc.driver.jax_backend.partition_rows import prepare_rows, register
from neuronx_cc.driver.jax_backend.partition_scatters import prepare_scatters
from neuronx_cc.driver.jax_backend.partition_sums import FREE, PINNED, spread
from neuronx_cc.driver.jax_backend.partition_top_k import prepare_top_k
from neuronx_cc.hlo_import.load import detect
from neuronx_cc.hlo_import.wire import FieldSpec, decode
from neuronx_cc.ir.targets import MAX_DEVICES

if TYPE_CHECKING:
    from neuronx_cc.driver.jax_backend.partition_time import Taken

PASS = "spmd-partitioning"
STAGE_AFTER_PASSES = 0
"""The first of the two places in XLA's compilation where functions of ours may stand: after the passes."""
LATER_PASSES = (
    *("algsimp", "constant_folding", "fusion", "fusion-wrapper", "reshape-mover", "layout-assignment"),
    *("copy-insertion", "cpu-all-reduce-combiner", "dot-library-rewriter", "reshape-decomposer", "scatter_expander"),
    *("simplify-sorts", "simplify-conditional", "while-loop-trip-count-annotator", "cpu-parallel-task-assigner"),
)
"""Passes of the CPU's that take time and come after the partitioner."""


GAIN = 0.97
"""What the partition as it comes counts for, beside 1 for another one that takes as much: estimates are rough."""
ROOM = 1.1
"""Times the memory of the partition as it comes that another one may hold, or its time that it may take: the estimate
leaves out what is moved in HBM, which is less where less is held.
"""
_HLO_PROTO = {"HloProto": {1: FieldSpec("module", "bytes")}}
"""xla/service/hlo.proto."""


class Request(TypedDict):
    """For how many devices, and for which parameters and results the partitioner may choose shardings.

    What is left out is as the module says: it states its devices, and what has no annotation is free.
    """

    replicas: NotRequired[int]
    partitions: NotRequired[int]
    to_parameters: NotRequired[list[bool]]
    to_results: NotRequired[list[bool]]
    shardy: bool
    """Whether the annotations are Shardy's; else GSPMD's."""
    spread: bool
    """Whether sums over devices may be kept by rows (``partition_sums``)."""


class Facts(TypedDict):
    """Serialized OpShardings in base64."""

    devices: tuple[int, int]
    """Replicas and partitions."""
    parameters: list[str]
    results: list[str]
    inspections: list[tuple[int, str]]


class _Enough(Exception):
    """Ends a compilation whose partitioned module has been written."""


CALLS = Calls()
register()


def partition(request: Request, code: bytes) -> tuple[Facts, bytes]:
    """The local module of ``code``. Raises what XLA raises where it does not get past its partitioner."""
    with make_context() as context, ir.Location.unknown():
        module = _read_module(code, context)
        request = {**_stated(module), **request}
        if request["partitions"] == 1 and b"manual_computation" not in code:
            return _whole(request), code
        plain = _partitioned(request, module)
        if not request["shardy"] or not request["spread"]:
            return plain
        others = [_attempt(request, code, context, kind) for kind in (PINNED, FREE)]
        return _least(plain, [each for each in others if each is not None and each[0] == plain[0]])


def _attempt(request: Request, code: bytes, context: Any, kind: str) -> tuple[Facts, bytes] | None:
    """The local module of ``code`` with sums spread in the way ``kind``; None where there are none, or XLA refuses."""
    module = _read_module(code, context)
    with suppress(Exception):
        if spread(module, kind):
            return _partitioned(request, module)
    return None


def _partitioned(request: Request, module: Any) -> tuple[Facts, bytes]:
    with tempfile.TemporaryDirectory(prefix="neuron-partition-") as folder:
        problem = _compile(request, module, folder)
        written = sorted(Path(folder).glob(f"*after_{PASS}.*.hlo.pb"))
        if not written:
            raise problem or ValueError("XLA has not run its partitioner")
        proto = written[-1].read_bytes()
    local = decode(_HLO_PROTO, "HloProto", proto, 0, len(proto))["module"]
    return _facts(local, (request["replicas"], request["partitions"])), local


def _least(plain: tuple[Facts, bytes], others: list[tuple[Facts, bytes]]) -> tuple[Facts, bytes]:
    """The partition that takes least time and memory by estimate; ``plain`` unless another gains."""
    if not others:
        return plain
    from neuronx_cc.driver.jax_backend.partition_time import taken  # with code generation, which few programs need here

    before = taken(plain[1])
    costs = [(GAIN, plain), *((_cost(taken(each[1]), before), each) for each in others)]
    return min(costs, key=lambda each: each[0])[1]


def _cost(after: "Taken", before: "Taken") -> float:
    """In parts of ``before``: time and half as much memory; infinite where either is much more."""
    time, room = after.nanoseconds / max(1.0, before.nanoseconds), after.held / max(1, before.held)
    return time * room**0.5 if time <= ROOM and room <= ROOM else float("inf")


def _whole(request: Request) -> Facts:
    return {"devices": (request["replicas"], 1), "parameters": [], "results": [], "inspections": []}


def _read_module(code: bytes, context: Any) -> Any:
    """StableHLO: a portable artifact, other bytecode or text; or HLO: text, or a HloModuleProto."""
    if code.startswith(b"ML\xefR") and b"StableHLO_v" in code[:64]:
        return _jax.mlir.deserialize_portable_artifact(code, context)
    kind = detect(code)
    if kind != "stablehlo":
        proto = _hlo.hlo_module_from_text(code.decode()).as_serialized_hlo_module_proto() if kind == "text" else code
        code = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto))
    return ir.Module.parse(code, context)


def _stated(module: Any) -> Request:
    """The request that a module makes by itself; of HLO the partitions are the devices of its meshes.

    Raises ValueError for too many devices.
    """
    (main,) = (op for op in module.body.operations if op.attributes["sym_name"] == ir.StringAttr.get("main"))
    stated = module.operation.attributes
    replicas = _number(stated, "mhlo.num_replicas", 1)
    meshes = str(stated["mhlo.frontend_attributes"]) if "mhlo.frontend_attributes" in stated else ""
    partitions = _number(stated, "mhlo.num_partitions", mesh_devices(meshes.encode()))
    if not 1 <= replicas * partitions <= MAX_DEVICES:
        raise ValueError(f"{replicas} replicas of {partitions} partitions: devices are 1 to {MAX_DEVICES}")
    return {
        "replicas": replicas,
        "partitions": partitions,
        "to_parameters": _free(main, "arg_attrs", len(main.type.inputs)),
        "to_results": _free(main, "res_attrs", len(main.type.results)),
        "shardy": False,
        "spread": False,
    }


def _number(attributes: Any, name: str, default: int) -> int:
    return int(ir.IntegerAttr(attributes[name]).value) if name in attributes else default


def _free(main: Any, name: str, count: int) -> list[bool]:
    """Which of the parameters or results of ``main`` have no annotation."""
    if name not in main.attributes:
        return [True] * count
    each = [ir.DictAttr(one) for one in ir.ArrayAttr(main.attributes[name])]
    return ["sdy.sharding" not in one and "mhlo.sharding" not in one for one in each]


def _compile(request: Request, module: Any, folder: str) -> Exception | None:
    """Let XLA partition ``module`` and write what it makes into ``folder``; why it ended early, if it did."""
    replicas, partitions = request["replicas"], request["partitions"]
    assignment = xla_client.DeviceAssignment.create(np.arange(replicas * partitions).reshape(replicas, partitions))
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions, options.device_assignment = replicas, partitions, assignment
    build = options.executable_build_options
    build.num_replicas, build.num_partitions, build.device_assignment = replicas, partitions, assignment
    build.use_spmd_partitioning, build.use_shardy_partitioner = True, request["shardy"]
    build.allow_spmd_sharding_propagation_to_parameters = request["to_parameters"]
    build.allow_spmd_sharding_propagation_to_output = request["to_results"]
    options.env_option_overrides = [
        ("xla_dump_to", folder),
        ("xla_dump_hlo_pass_re", PASS),
        ("xla_dump_hlo_as_proto", True),
        ("xla_disable_hlo_passes", ",".join(LATER_PASSES)),
    ]
    CALLS.prepare(module)
    prepare_pads(module)
    prepare_top_k(module)
    if request["shardy"]:
        prepare_orders(module)
        prepare_loops(module)
        prepare_parts(module)
        prepare_convolutions(module)
    prepare_reductions(module)
    prepare_rows(module)
    prepare_scatters(module, partitions)
    try:
        devices = _client(replicas * partitions).devices()[: replicas * partitions]
        _client(replicas * partitions).compile_and_load(module, _jax.DeviceList(tuple(devices)), options)
    except Exception as problem:
        return problem
    return None


@cache
def _cached_client(count: int) -> Any:
    return xla_client.make_cpu_client(num_devices=count)


def _client(count: int) -> Any:
    """A CPU client of at least ``count`` devices."""
    return _cached_client(max(8, 1 << (count - 1).bit_length()))


def _stop_after_passes() -> None:
    """Let every compilation end where code generation would begin. Older versions of jaxlib cannot, and take longer."""

    def stop(_: bytes) -> None:
        raise _Enough

    with suppress(ImportError):
        from jaxlib import _xla  # type: ignore[attr-defined,unused-ignore]

        _xla.register_xla_transform("neuron.enough", STAGE_AFTER_PASSES, stop)


def _facts(module: bytes, devices: tuple[int, int]) -> Facts:
    parsed = _hlo.HloModule.from_serialized_hlo_module_proto(module)
    given = list(parsed.spmd_parameters_shardings or ())
    made = parsed.spmd_output_sharding
    results = [] if made is None else list(made.tuple_shardings) or [made]
    return {
        "devices": devices,
        "parameters": [_text(each) for each in given],
        "results": [_text(each) for each in results],
        "inspections": list(CALLS.inspections),
    }


def _text(sharding: Any) -> str:
    return base64.b64encode(sharding.SerializeToString()).decode()


def make_context() -> Any:
    """A context with the dialects of portable artifacts."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(4)
    return stream.read(struct.unpack("<I", head)[0]) if len(head) == 4 else b""


def main() -> None:
    """Answer requests until stdin ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not get between the messages
    _stop_after_passes()
    while message := _read(sys.stdin.buffer):
        try:
            line, code = message.split(b"\n", 1)
            facts, local = partition(json.loads(line), code)
            answer = b"+" + json.dumps(facts).encode() + b"\n" + local
        except Exception as error:
            answer = b"-" + f"{type(error).__name__}: {error}".encode()
        output.write(struct.pack("<I", len(answer)) + answer)
        output.flush()


if __name__ == "__main__":
    main()
