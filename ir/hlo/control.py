"""Tuples, calls, control flow, tokens and asynchronous forms."""

from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def

from neuronx_cc.ir.hlo.attrs import IntAttr, StrAttr, StrsAttr
from neuronx_cc.ir.hlo.base import HostOp, IdentityOp, OpaqueOp, RegionOp, StartOp, UnaryOp, VariadicOp


@irdl_op_definition
class TupleOp(VariadicOp):
    """Packs values."""

    name = "hlo.tuple"


@irdl_op_definition
class GetTupleElementOp(UnaryOp):
    """Element ``index`` of a tuple."""

    name = "hlo.get_tuple_element"
    index = prop_def(IntAttr)


@irdl_op_definition
class CallOp(VariadicOp):
    """Calls ``to_apply``."""

    name = "hlo.call"
    to_apply = prop_def(StrsAttr)


@irdl_op_definition
class FusionOp(VariadicOp):
    """Calls ``calls``; ``kind`` as XLA's fusion kinds."""

    name = "hlo.fusion"
    calls = prop_def(StrsAttr)
    kind = prop_def(StrAttr)


@irdl_op_definition
class WhileOp(UnaryOp, RegionOp):
    """Repeats ``body`` while ``condition`` holds."""

    name = "hlo.while"
    condition = prop_def(StrsAttr)
    body = prop_def(StrsAttr)


@irdl_op_definition
class ConditionalOp(VariadicOp, RegionOp):
    """predicate or index, then one operand a branch."""

    name = "hlo.conditional"
    branches = prop_def(StrsAttr)


@irdl_op_definition
class CustomCallOp(VariadicOp, OpaqueOp):
    """Calls a target known by name."""

    name = "hlo.custom_call"
    target = prop_def(StrAttr)
    backend_config = opt_prop_def(StrAttr)
    called = opt_prop_def(StrsAttr)


@irdl_op_definition
class OptBarrierOp(UnaryOp, IdentityOp, OpaqueOp):
    """Identity that no pass moves code across."""

    name = "hlo.opt_barrier"


@irdl_op_definition
class DomainOp(UnaryOp):
    """Identity between sharding domains."""

    name = "hlo.domain"


@irdl_op_definition
class AfterAllOp(VariadicOp):
    """Joins tokens."""

    name = "hlo.after_all"


@irdl_op_definition
class AddDependencyOp(VariadicOp):
    """First operand, after the token."""

    name = "hlo.add_dependency"


@irdl_op_definition
class CopyStartOp(UnaryOp, StartOp):
    """Begins an asynchronous copy."""

    name = "hlo.copy_start"


@irdl_op_definition
class CopyDoneOp(UnaryOp):
    """Ends an asynchronous copy."""

    name = "hlo.copy_done"


@irdl_op_definition
class AsyncStartOp(VariadicOp, StartOp):
    """Begins an asynchronous call."""

    name = "hlo.async_start"
    calls = prop_def(StrsAttr)


@irdl_op_definition
class AsyncUpdateOp(UnaryOp):
    """Continues an asynchronous call."""

    name = "hlo.async_update"


@irdl_op_definition
class AsyncDoneOp(UnaryOp):
    """Ends an asynchronous call."""

    name = "hlo.async_done"


@irdl_op_definition
class InfeedOp(VariadicOp, HostOp):
    """Reads from the host."""

    name = "hlo.infeed"


@irdl_op_definition
class OutfeedOp(VariadicOp, HostOp):
    """Writes to the host."""

    name = "hlo.outfeed"


@irdl_op_definition
class SendOp(VariadicOp, HostOp):
    """Sends to a channel."""

    name = "hlo.send"


@irdl_op_definition
class SendDoneOp(VariadicOp, HostOp):
    """Ends a send."""

    name = "hlo.send_done"


@irdl_op_definition
class RecvOp(VariadicOp, HostOp):
    """Receives from a channel."""

    name = "hlo.recv"


@irdl_op_definition
class RecvDoneOp(VariadicOp, HostOp):
    """Ends a receive."""

    name = "hlo.recv_done"
