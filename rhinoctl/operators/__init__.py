"""What runs in an instance: declared by the job, vectorised on both sides (design, section 11)."""

from rhinoctl.operators.base import (
    KEY_GROUP,
    Applied,
    ArithmeticOverflow,
    BatchContext,
    BoundOperator,
    Operator,
    OperatorState,
    Slice,
)
from rhinoctl.operators.join import WindowJoin
from rhinoctl.operators.registry import bound_from_json, from_spec
from rhinoctl.operators.running import RunningAggregate
from rhinoctl.operators.windows import WindowAggregate

__all__ = [
    "KEY_GROUP",
    "Applied",
    "ArithmeticOverflow",
    "BatchContext",
    "BoundOperator",
    "Operator",
    "OperatorState",
    "RunningAggregate",
    "Slice",
    "WindowAggregate",
    "WindowJoin",
    "bound_from_json",
    "from_spec",
]
