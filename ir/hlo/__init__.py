"""The hlo dialect: one op class per HLO opcode, in families.

``from neuronx_cc.ir import hlo`` and use ``hlo.AddOp``, ``hlo.OPCODES["add"]``, ``hlo.array_type``.
The few xDSL names that passes need are re-exported here; nothing outside ``ir`` imports xDSL.
"""

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue

from neuronx_cc.ir.errors import NO_LOC, Loc
from neuronx_cc.ir.hlo.attrs import *
from neuronx_cc.ir.hlo.base import *
from neuronx_cc.ir.hlo.collective import *
from neuronx_cc.ir.hlo.compute import *
from neuronx_cc.ir.hlo.control import *
from neuronx_cc.ir.hlo.elementwise import *
from neuronx_cc.ir.hlo.module import *
from neuronx_cc.ir.hlo.movement import *
from neuronx_cc.ir.types import Shape, itemsize, shape
