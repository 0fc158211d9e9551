"""Any value that fits an annotation, as the codec understands annotations."""

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from rhinoctl.ids import InstanceId, WorkerId
from rhinoctl.protocol import messages
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route
from rhinoctl.protocol.messages import Message

KINDS = sorted(
    {k for k in vars(messages).values() if isinstance(k, type) and issubclass(k, Message)},
    key=lambda kind: kind.__name__,
)
NAMES = st.text("ab/:é\x00", max_size=4)
INTEGERS = st.integers(-(2**63), 2**64)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value that fits an annotation, as the codec understands annotations."""
    if hasattr(annotation, "__supertype__"):
        return values_of(annotation.__supertype__)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if a is types.NoneType else values_of(a) for a in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, args))
    if origin is frozenset:
        return st.frozensets(values_of(args[0]), max_size=2)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=2)
    return values_of_class(annotation)


def values_of_class(kind: Any) -> st.SearchStrategy[Any]:
    if kind is Epoch:
        return epochs()
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    plain = {int: INTEGERS, str: NAMES, float: FLOATS, bool: st.booleans()}
    if kind in plain:
        return plain[kind]
    hints = typing.get_type_hints(kind)
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    return st.deferred(lambda: st.builds(kind, **{name: values_of(hints[name]) for name in names}))


@st.composite
def epochs(draw: st.DrawFn) -> Epoch:
    """Epochs check themselves, so they are built to be right."""
    workers = [
        WorkerId(name) for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    ]
    names = draw(st.lists(NAMES, min_size=1, max_size=2, unique=True))
    instances = {InstanceId(name): draw(st.sampled_from(workers)) for name in names}
    routes = []
    for _ in range(draw(st.integers(0, 2))):
        owner = draw(st.sampled_from(sorted(instances)))
        rest = [worker for worker in workers if worker != instances[owner]]
        chain = draw(st.permutations(rest))[: draw(st.integers(0, len(rest)))]
        members = tuple(Member(worker=w, role=draw(st.sampled_from(Role))) for w in chain)
        routes.append(Route(owner=owner, members=members))
    addresses = {worker: draw(NAMES) for worker in workers}
    number = draw(INTEGERS)
    return Epoch(number=number, workers=addresses, instances=instances, routes=tuple(routes))
