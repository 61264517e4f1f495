"""Decoded sharding and device-list protos -> the texts XLA prints for them."""

from neuronx_cc.hlo_import.wire import Message


def iota_groups_text(groups: Message) -> str:
    """``[2,4]<=[4,2]T(1,0)``."""
    dims = ",".join(map(str, groups.get("iota_reshape_dims", ())))
    order = groups.get("iota_transpose_perm", [])
    transposed = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
    return f"[{groups.get('num_replica_groups', 0)},{groups.get('num_devices_per_group', 0)}]<=[{dims}]{transposed}"


def mesh_groups_text(groups: Message) -> str:
    """``mesh['x'=2,'y'=4], device_ids=(1,0,...) {'x','y':(1)2}``. Raises ValueError on axes the mesh has not got."""
    mesh = groups.get("mesh", {})
    axes = mesh.get("axes", [])
    references = ",".join(_axis(axis, axes) for axis in groups.get("axes", ()))
    return f"{_mesh(mesh)} {{{references}}}"


def _mesh(mesh: Message) -> str:
    ids = ""
    if "iota" in mesh:
        dims, order = mesh["iota"].get("reshape_dims", ()), mesh["iota"].get("transpose_perm", ())
        ids = f", device_ids=([{','.join(map(str, dims))}]T({','.join(map(str, order))}))"
    elif mesh.get("device_ids"):
        ids = f", device_ids=({','.join(map(str, mesh['device_ids']))})"
    axes = ",".join(f"'{axis.get('name', '')}'={axis.get('size', 0)}" for axis in mesh.get("axes", ()))
    return f"mesh[{axes}]{ids}"


def _axis(axis: Message, axes: list[Message]) -> str:
    index, part = axis.get("mesh_axis_index", 0), axis.get("sub_axis_info")
    if not 0 <= index < len(axes):
        raise ValueError(f"expected an axis of the mesh, found number {index}")
    sub = f":({part.get('pre_size', 0)}){part.get('size', 0)}" if part else ""
    return f"'{axes[index].get('name', '')}'{sub}"


def _named_sharding(sharding: Message) -> str:
    """``{mesh['x'=2,'y'=4], [{'x'}, {?}], replicated={'y'}}``."""
    if parts := sharding.get("tuple_shardings"):
        return f"{{{', '.join(map(_named_sharding, parts))}}}"
    mesh = sharding.get("mesh", {})
    axes = mesh.get("axes", [])
    dims = []
    for dim in sharding.get("dim_shardings", ()):
        names = [_axis(axis, axes) for axis in dim.get("axes", ())]
        dims.append(f"{{{', '.join(names if dim.get('is_closed') else [*names, '?'])}}}")
    text = f"{_mesh(mesh)}, [{', '.join(dims)}]"
    for kind in ("replicated", "unreduced"):
        if named := sharding.get(f"{kind}_axes"):
            text += f", {kind}={{{', '.join(_axis(axis, axes) for axis in named)}}}"
    return f"{{{text}}}"


_SIMPLE_SHARDINGS = {0: "replicated", 4: "manual", 5: "unknown", 6: "unreduced"}
_SUBGROUPS = {0: "replicated", 1: "maximal", 4: "manual", 5: "unknown", 6: "unreduced"}


def sharding_text(sharding: Message) -> str:
    """``{devices=[2,1]<=[2]}``, ``{replicated}``, ``{maximal device=0}``, tuples of these."""
    if named := sharding.get("named_sharding"):
        return _named_sharding(named)
    kind = sharding.get("type", 0)
    if kind == 2:
        return f"{{{', '.join(sharding_text(part) for part in sharding.get('tuple_shardings', ()))}}}"
    group = ""
    if sharding.get("is_shard_group"):
        word = "shard_like" if sharding.get("shard_group_type") else "shard_as"
        group = f" {word} {sharding.get('shard_group_id', 0)}"
    if kind in _SIMPLE_SHARDINGS:
        return f"{{{_SIMPLE_SHARDINGS[kind]}{group}}}"
    devices = sharding.get("tile_assignment_devices", [])
    if kind == 1:
        return f"{{maximal device={devices[0] if devices else 0}{group}}}"
    dims = ",".join(map(str, sharding.get("tile_assignment_dimensions", ())))
    if reshape := sharding.get("iota_reshape_dims"):
        order = sharding.get("iota_transpose_perm", [])
        permuted = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
        text = f"devices=[{dims}]<=[{','.join(map(str, reshape))}]{permuted}"
    else:
        text = f"devices=[{dims}]{','.join(map(str, devices))}"
    if sharding.get("replicate_on_last_tile_dim"):
        text += " last_tile_dim_replicate"
    if last := sharding.get("last_tile_dims"):
        text += f" last_tile_dims={{{', '.join(_SUBGROUPS.get(one, 'replicated') for one in last)}}}"
    return f"{{{text}{group}}}"
