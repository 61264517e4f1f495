"""Where a program runs: the device assignment of a CompileOptions proto."""

import numpy as np
from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]

from neuronx_cc.driver.jax_backend.failure import INVALID_ARGUMENT, PluginError
from neuronx_cc.driver.jax_backend.program import Placement
from neuronx_cc.hlo_import.wire import FieldSpec, decode

_ASSIGNMENT = {
    "DeviceAssignmentProto": {3: FieldSpec("columns", "ComputationDevice", True)},
    "ComputationDevice": {1: FieldSpec("ids", "int", True)},
}
"""xla/xla_data.proto."""


def place(options: bytes, device_count: int) -> Placement:
    """The devices of the assignment, else the first ones; a portable program runs on any single one.

    Raises PluginError when there are too few devices.
    """
    wanted = _jax.CompileOptions.ParseFromString(options)
    replicas, partitions = wanted.num_replicas, wanted.num_partitions
    if wanted.compile_portable_executable:
        return Placement(1, 1, (), b"")
    assignment = wanted.device_assignment or wanted.executable_build_options.device_assignment
    if assignment is None:
        count = replicas * partitions
        if count > device_count:
            raise PluginError(INVALID_ARGUMENT, f"{count} devices are needed, there are {device_count}")
        assignment = _jax.DeviceAssignment.create(np.arange(count).reshape(replicas, partitions))
    serialized: bytes = assignment.serialize()
    # the message has one list of replicas for each partition
    columns = decode(_ASSIGNMENT, "DeviceAssignmentProto", serialized, 0, len(serialized))["columns"]
    ids = tuple(column["ids"][replica] for replica in range(replicas) for column in columns)
    return Placement(replicas, partitions, ids, serialized)
