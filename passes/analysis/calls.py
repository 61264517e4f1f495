"""Which computations an op calls, and under which property."""

from neuronx_cc.ir import hlo

IRDL_BASES = (hlo.HloOp, hlo.ComputationOp, hlo.ReturnOp)

CALLS = ("to_apply", "calls", "condition", "body", "branches", "called")
"""Properties that name computations."""

_CALLERS: dict[type, tuple[str, ...]] = {}


def call_properties(op: hlo.Operation) -> tuple[str, ...]:
    """The properties of ``op``'s class that name computations."""
    kind: type = type(op)
    names = _CALLERS.get(kind)
    if names is None:
        declared = property_names(kind)
        names = tuple(name for name in CALLS if name in declared)
        _CALLERS[kind] = names
    return names


def property_names(kind: type) -> frozenset[str]:
    """Names of the properties that op class ``kind`` declares."""
    definition = kind.get_irdl_definition() if issubclass(kind, IRDL_BASES) else None
    return frozenset(definition.properties) if definition is not None else frozenset()


def called_names(op: hlo.Operation) -> tuple[str, ...]:
    """Names of the computations that ``op`` calls, in property order."""
    found: tuple[str, ...] = ()
    for name in call_properties(op):
        attr = op.properties.get(name)
        if isinstance(attr, hlo.StrsAttr):
            found += attr.data
    return found
