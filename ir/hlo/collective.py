"""Collectives and device identity."""

from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def

from neuronx_cc.ir.hlo.attrs import GroupsAttr, IntAttr, StrsAttr
from neuronx_cc.ir.hlo.base import NullaryOp, UnaryOp, VariadicOp


@irdl_op_definition
class AllReduceOp(VariadicOp):
    """Combines over replicas by ``to_apply``."""

    name = "hlo.all_reduce"
    to_apply = prop_def(StrsAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllReduceStartOp(VariadicOp):
    """Begins an all-reduce."""

    name = "hlo.all_reduce_start"
    to_apply = prop_def(StrsAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllReduceDoneOp(UnaryOp):
    """Ends an all-reduce."""

    name = "hlo.all_reduce_done"


@irdl_op_definition
class AllGatherOp(VariadicOp):
    """Concatenates over replicas along ``all_gather_dimension``."""

    name = "hlo.all_gather"
    all_gather_dimension = prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllGatherStartOp(VariadicOp):
    """Begins an all-gather."""

    name = "hlo.all_gather_start"
    all_gather_dimension = prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllGatherDoneOp(UnaryOp):
    """Ends an all-gather."""

    name = "hlo.all_gather_done"


@irdl_op_definition
class ReduceScatterOp(VariadicOp):
    """Combines and splits along ``scatter_dimension``."""

    name = "hlo.reduce_scatter"
    scatter_dimension = prop_def(IntAttr)
    to_apply = prop_def(StrsAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class AllToAllOp(VariadicOp):
    """Exchanges blocks."""

    name = "hlo.all_to_all"
    split_dimension = opt_prop_def(IntAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class RaggedAllToAllOp(VariadicOp):
    """Exchanges blocks of run-time sizes."""

    name = "hlo.ragged_all_to_all"
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class CollectivePermuteOp(VariadicOp):
    """Moves values along source-target pairs."""

    name = "hlo.collective_permute"
    source_target_pairs = prop_def(GroupsAttr)


@irdl_op_definition
class CollectivePermuteStartOp(VariadicOp):
    """Begins a collective-permute."""

    name = "hlo.collective_permute_start"
    source_target_pairs = prop_def(GroupsAttr)


@irdl_op_definition
class CollectivePermuteDoneOp(UnaryOp):
    """Ends a collective-permute."""

    name = "hlo.collective_permute_done"


@irdl_op_definition
class CollectiveBroadcastOp(VariadicOp):
    """First replica's value to its group."""

    name = "hlo.collective_broadcast"
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class CollectiveReduceOp(VariadicOp):
    """Combines to one replica."""

    name = "hlo.collective_reduce"
    to_apply = prop_def(StrsAttr)
    replica_groups = opt_prop_def(GroupsAttr)


@irdl_op_definition
class PartitionIdOp(NullaryOp):
    """Index of this partition."""

    name = "hlo.partition_id"


@irdl_op_definition
class ReplicaIdOp(NullaryOp):
    """Index of this replica."""

    name = "hlo.replica_id"
