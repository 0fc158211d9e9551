"""Operators by the kind that their spec names."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rhinoctl.errors import UnsupportedOperator
from rhinoctl.operators.arrow_types import type_of_name
from rhinoctl.operators.base import BoundOperator, Operator
from rhinoctl.operators.join import WindowJoin
from rhinoctl.operators.running import RunningAggregate
from rhinoctl.operators.windows import WindowAggregate

KINDS: dict[str, type[Operator]] = {
    operator.kind: operator for operator in (RunningAggregate, WindowAggregate, WindowJoin)
}


def from_spec(spec: Mapping[str, Any]) -> Operator:
    """The operator that `Operator.spec` described. Raises UnsupportedOperator."""
    kind, version = spec.get("kind"), spec.get("version")
    operator = KINDS.get(str(kind))
    if operator is None or operator.version != version:
        known = ", ".join(f"{each.kind} {each.version}" for each in KINDS.values())
        raise UnsupportedOperator(
            f"this release has no operator '{kind}' of version {version}; it has {known}",
            remedy="install the same release on the driver and on every worker",
        )
    return operator.from_spec(spec)


def bound_from_json(data: Mapping[str, Any]) -> BoundOperator:
    """The bound operator that `BoundOperator.to_json` described. Raises UnsupportedOperator."""
    columns = {name: type_of_name(held) for name, held in data["columns"].items()}
    return from_spec(data["spec"]).bind(pa.schema(list(columns.items())))
