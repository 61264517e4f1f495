"""Collectives and device identity."""

from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def

from neuronx_cc.ir.hlo.attrs import GroupsAttr, IntAttr
from neuronx_cc.ir.hlo.base import ApplyingOp, ExchangeOp, NullaryOp, ReducingOp, StartOp, UnaryOp, VariadicOp


@irdl_op_definition
class AllReduceOp(VariadicOp, ReducingOp):
    """Combines over replicas by ``to_apply``."""

    name = "hlo.all_reduce"
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllReduceStartOp(VariadicOp, StartOp, ApplyingOp):
    """Begins an all-reduce."""

    name = "hlo.all_reduce_start"
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllReduceDoneOp(UnaryOp):
    """Ends an all-reduce."""

    name = "hlo.all_reduce_done"


@irdl_op_definition
class AllGatherOp(VariadicOp, ExchangeOp):
    """Concatenates over replicas along ``all_gather_dimension``."""

    name = "hlo.all_gather"
    all_gather_dimension = prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllGatherStartOp(VariadicOp, StartOp):
    """Begins an all-gather."""

    name = "hlo.all_gather_start"
    all_gather_dimension = prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllGatherDoneOp(UnaryOp):
    """Ends an all-gather."""

    name = "hlo.all_gather_done"


@irdl_op_definition
class ReduceScatterOp(VariadicOp, ReducingOp):
    """Combines and splits along ``scatter_dimension``."""

    name = "hlo.reduce_scatter"
    scatter_dimension = prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllToAllOp(VariadicOp, ExchangeOp):
    """Exchanges blocks."""

    name = "hlo.all_to_all"
    split_dimension = opt_prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class RaggedAllToAllOp(VariadicOp, ExchangeOp):
    """Exchanges blocks of run-time sizes."""

    name = "hlo.ragged_all_to_all"
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class CollectivePermuteOp(VariadicOp, ExchangeOp):
    """Moves values along source-target pairs."""

    name = "hlo.collective_permute"
    source_target_pairs = prop_def(GroupsAttr)


@irdl_op_definition
class CollectivePermuteStartOp(VariadicOp, StartOp):
    """Begins a collective-permute."""

    name = "hlo.collective_permute_start"
    source_target_pairs = prop_def(GroupsAttr)


@irdl_op_definition
class CollectivePermuteDoneOp(UnaryOp):
    """Ends a collective-permute."""

    name = "hlo.collective_permute_done"


@irdl_op_definition
class CollectiveBroadcastOp(VariadicOp, ExchangeOp):
    """First replica's value to its group."""

    name = "hlo.collective_broadcast"
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class CollectiveReduceOp(VariadicOp, ReducingOp):
    """Combines to one replica."""

    name = "hlo.collective_reduce"
    replica_groups = opt_prop_def(GroupsAttr)


class DeviceNumberOp(NullaryOp):
    """A number of the device that runs the program."""


@irdl_op_definition
class PartitionIdOp(DeviceNumberOp):
    """Index of this partition."""

    name = "hlo.partition_id"


@irdl_op_definition
class ReplicaIdOp(DeviceNumberOp):
    """Index of this replica."""

    name = "hlo.replica_id"
