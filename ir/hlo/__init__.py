"""The hlo dialect: one op class per HLO opcode, in families.

``from neuronx_cc.ir import hlo`` and use ``hlo.AddOp``, ``hlo.OPCODES["add"]``, ``hlo.array_type``.
The few xDSL names that passes need are re-exported here; nothing outside ``ir`` imports xDSL.
"""

from xdsl.dialects.builtin import ModuleOp as ModuleOp
from xdsl.ir import Attribute as Attribute
from xdsl.ir import Block as Block
from xdsl.ir import BlockArgument as BlockArgument
from xdsl.ir import Operation as Operation
from xdsl.ir import OpResult as OpResult
from xdsl.ir import Region as Region
from xdsl.ir import SSAValue as SSAValue

from neuronx_cc.ir.errors import NO_LOC as NO_LOC
from neuronx_cc.ir.errors import Loc as Loc
from neuronx_cc.ir.hlo.attrs import *
from neuronx_cc.ir.hlo.base import *
from neuronx_cc.ir.hlo.collective import *
from neuronx_cc.ir.hlo.compute import *
from neuronx_cc.ir.hlo.control import *
from neuronx_cc.ir.hlo.elementwise import *
from neuronx_cc.ir.hlo.module import *
from neuronx_cc.ir.hlo.movement import *
from neuronx_cc.ir.types import FLOATS as FLOATS
from neuronx_cc.ir.types import INTEGERS as INTEGERS
from neuronx_cc.ir.types import Shape as Shape
from neuronx_cc.ir.types import itemsize as itemsize
from neuronx_cc.ir.types import shape as shape
