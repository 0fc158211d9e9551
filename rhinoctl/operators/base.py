"""The contract between a job, Spark's tasks and the instances: what an operator is.

1. A declaration (`Operator`) is a value: `from_spec(spec())` equals it, and `spec()` is JSON.
2. Binding it to the frame's schema fixes every type. A bound operator, too, is made again from
   JSON, so Spark's tasks and the instances work with equal ones.
3. Spark's side is `pre_aggregate`: rows of one task to rows of the wire. It may be called once or
   often in a task; the result is the same, up to the order in which floats are added.
4. The instance's side is `apply`: it reads stores and returns what to write. It writes nothing, so
   an exception leaves every store as it was. Given the same slices and stores it returns the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from rhinoctl.ids import Vnode
from rhinoctl.protocol.ports import Store, WriteBatch

KEY_GROUP = "__kg"
"""The int32 column that carries a row's key group from Spark's JVM to the instance."""

Slice = tuple[Vnode, pa.RecordBatch]
"""Rows of the wire for one vnode."""


class ArithmeticOverflow(ArithmeticError):
    """A sum left the range of long under ANSI arithmetic, as Spark's ARITHMETIC_OVERFLOW.

    Not a leaf of `rhinoctl.errors`: only the caller knows the batch, and whether it was being
    staged (then it is undecided) or applied (then this becomes a PoisonBatch). `vnode` is None on
    Spark's side, where rows have not been routed yet.
    """

    def __init__(self, message: str, *, remedy: str, key: str, vnode: Vnode | None) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy
        self.key = key
        self.vnode = vnode


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch does to the stores, and what it says.

    `writes` has one write batch for each vnode that the batch touches. `output` is in the bound
    operator's `result_schema`; the rows of a vnode are together, vnodes ascend, and
    `output_vnodes` counts the rows of each.
    """

    writes: dict[Vnode, WriteBatch]
    output: pa.Table
    output_vnodes: dict[Vnode, int]


class Operator(ABC):
    """A stateful step as the job declares it: a frozen dataclass."""

    kind: ClassVar[str]
    """Its name in a spec."""

    version: ClassVar[int]
    """Raised when the same declaration means another state layout or result."""

    deterministic: ClassVar[bool] = True
    """Whether `apply` is a function of slices and stores; if not, effects are logged."""

    keys: tuple[str, ...]
    """The key columns; Spark's ``xxhash64`` of them, in this order, places a row."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Kind, version and all parameters, as JSON."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "Operator":
        """The inverse of `spec`."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of the user's frame that the operator needs, keys first."""

    @abstractmethod
    def bind(self, input_schema: pa.Schema) -> "BoundOperator":
        """Fix the types. Raises MissingColumn or UnsupportedOperator, which name the column."""


class BoundOperator(ABC):
    """An operator whose column types are known."""

    operator: Operator

    wire_schema: pa.Schema
    """What travels: `KEY_GROUP`, the key columns, partial results."""

    result_schema: pa.Schema
    """What the user's ``then`` sees."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything that `bound_from_json` needs. Equal for equal behaviour and state layout, so
        it is also the identity that is compared on a restart (invariant 11)."""

    @abstractmethod
    def pre_aggregate(self, table: pa.Table) -> pa.Table:
        """Rows of a task, with the operator's columns and `KEY_GROUP`, to rows of `wire_schema`."""

    @abstractmethod
    def apply(self, slices: Sequence[Slice], stores: Mapping[Vnode, Store]) -> Applied:
        """Apply the slices of one batch, in (channel, sequence) order; a vnode may have several.

        Raises UnknownVnode for a slice without a store, IdentityChanged for one that is not in
        `wire_schema`, ArithmeticOverflow; whatever it raises, no store has changed.
        """

    @abstractmethod
    def scan(self, store: Store) -> Iterator[pa.RecordBatch]:
        """The whole state of a vnode as rows of `result_schema`, in key order."""
