"""The contract between a job, Spark's tasks and the instances: what an operator is.

1. A declaration (`Operator`) is a value: `from_spec(spec())` equals it, and `spec()` is JSON.
2. Binding it to the frame's schema fixes every type. A bound operator, too, is made again from
   JSON, so Spark's tasks and the instances work with equal ones.
3. Spark's side is `pre_aggregate`: rows of one task to rows of the wire. It may be called once or
   often in a task; the result is the same, up to the order in which floats are added.
4. The instance's side is `apply`, over an `OperatorState`. Whatever it raises, the state is as it
   was. Given the same slices, state and context it does the same, and returns the same.
5. The state gathers changes; `spill` gives all of one vnode's, to be written at once. So a store
   has the state as of some batch, never something in between.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.protocol.ports import Store, WriteBatch
from rhinoctl.protocol.records import NO_WATERMARKS, Watermarks

KEY_GROUP = "__kg"
"""The int32 column that carries a row's key group from Spark's JVM to the instance."""

CACHE_BYTES = 32 << 20
"""Half of an instance's default; the other half is RocksDB's block cache."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """What a batch's record says to the operator. Time inside operators is `batch_time_ms`, the
    timestamp of Spark's offset log, never the clock. `vnodes` are those that take the batch."""

    time: BatchTime
    vnodes: frozenset[Vnode]
    batch_time_ms: int = 0
    watermarks: Watermarks = NO_WATERMARKS


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch says. `output` is in the bound operator's `result_schema`; the rows of a vnode
    are together, vnodes ascend, and `output_vnodes` counts the rows of each. `touched` are the
    vnodes that had rows."""

    output: pa.Table
    output_vnodes: dict[Vnode, int]
    touched: frozenset[Vnode]


class OperatorState(ABC):
    """What an instance has of an operator's state: the attached vnodes' stores, and the changes
    that are not in them yet."""

    @property
    @abstractmethod
    def vnodes(self) -> frozenset[Vnode]:
        """The attached ones."""

    @abstractmethod
    def attach(self, vnode: Vnode, store: Store) -> None:
        """Work on a vnode from now on."""

    @abstractmethod
    def detach(self, vnode: Vnode) -> None:
        """Forget a vnode, with the changes that were not spilled."""

    @abstractmethod
    def spill(self, vnode: Vnode) -> WriteBatch:
        """All changes of a vnode since its last spill, perhaps none. The caller writes them at
        once; if it cannot, the state is not to be used any more."""

    @abstractmethod
    def dirty_bytes(self, vnode: Vnode) -> int:
        """About how much memory a vnode's changes take until they are spilled."""


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
        """The columns of the user's frame that the operator needs, keys first. A field of a tagged
        input is named with it, ``left.id``."""

    def key_columns(self) -> tuple[tuple[str, ...], ...]:
        """For each key the column that holds it; of several inputs, the one of each."""
        return tuple((key,) for key in self.keys)

    @property
    def evicts(self) -> bool:
        """Whether state goes as the watermark rises: then even a batch without rows does work."""
        return False

    inputs: ClassVar[tuple[str, ...]] = ()
    """The names of the inputs of an operator that takes a tagged union."""

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

    delays_ms: tuple[int, ...] = ()
    """The watermark delay of each input; without one, nothing is ever late or evicted."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything that `bound_from_json` needs. Equal for equal behaviour and state layout, so
        it is also the identity that is compared on a restart (invariant 11)."""

    @abstractmethod
    def pre_aggregate(self, table: pa.Table) -> pa.Table:
        """Rows of a task, with the operator's columns and `KEY_GROUP`, to rows of `wire_schema`."""

    def event_times(self, table: pa.Table) -> tuple[int | None, ...]:
        """The greatest event time of each input among rows of a task, in milliseconds since 1970
        rounded down, None without any."""
        return ()

    @abstractmethod
    def state(self, cache_bytes: int = CACHE_BYTES) -> OperatorState:
        """An instance's state, without vnodes. Rows that are in the stores, too, are kept in
        `cache_bytes` of memory."""

    @abstractmethod
    def apply(self, slices: Sequence[Slice], state: Any, context: BatchContext) -> Applied:
        """Apply the slices of one batch, in (channel, sequence) order; a vnode may have several.
        `state` is one that `state()` has made; of it, only the context's vnodes are touched.

        Raises UnknownVnode for a slice of a vnode that is not attached, IdentityChanged for one
        that is not in `wire_schema`, ArithmeticOverflow; whatever it raises, nothing has changed.
        """

    @abstractmethod
    def scan(self, store: Store) -> Iterator[pa.RecordBatch]:
        """The whole state of a vnode as rows of `result_schema`, in key order."""
