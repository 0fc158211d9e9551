"""What a version of messages, or of what lies on disks, is made of: a text, kept beside this.

    python -m tests.unit.protocol.wording

writes the texts of the newest versions anew. That is right as long as no release has them; those of
older versions never change (docs/protocol/versions.md).
"""

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rhinoctl.control.registry import FailoverDocument, JobDocument, OperationDocument
from rhinoctl.protocol import views
from rhinoctl.protocol.claims import Claim
from rhinoctl.protocol.disks import DiskList, DiskRequest
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.messages import Message
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.versions import FORMAT, PROTOCOL, is_read, newer_values
from rhinoctl.state.manifests import Manifest
from rhinoctl.wire.frames import Head
from tests.unit.protocol.drawing import KINDS

KEPT = Path(__file__).parent / "wordings"

VIEWS = sorted(
    (
        kind
        for kind in vars(views).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == views.__name__
    ),
    key=lambda kind: kind.__name__,
)
SAID: tuple[type, ...] = (*KINDS, *VIEWS, ClusterEvidence, DiskList, DiskRequest, Head)
KEPT_ON_DISKS: tuple[type, ...] = (
    *(Manifest, DecisionRecord, JobDocument, OperationDocument, FailoverDocument, Claim),
)


def wording(roots: Iterable[type], version: int) -> str:
    """All kinds that `roots` are made of, as a version has them: one line a field or value."""
    known = reachable(roots)
    return "".join(_lines_of(known[name], version) for name in sorted(known))


def reachable(roots: Iterable[type]) -> dict[str, type]:
    """The roots and all classes that their fields are made of, by name with module."""
    found: dict[str, type] = {}
    open_ends = list(roots)
    while open_ends:
        kind = open_ends.pop()
        if name_of(kind) not in found:
            found[name_of(kind)] = kind
            open_ends += [each for hint in hints_of(kind).values() for each in _classes_in(hint)]
    return found


def name_of(kind: type) -> str:
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def hints_of(kind: type) -> Mapping[str, Any]:
    """The annotations of what is written of a class; none for an enum."""
    if issubclass(kind, Enum):
        return {}
    hints = typing.get_type_hints(kind)
    names = (f.name for f in fields(kind)) if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    return {name: hints[name] for name in names}


def _classes_in(hint: Any) -> list[type]:
    if typing.get_args(hint):
        return [kind for arg in typing.get_args(hint) for kind in _classes_in(arg)]
    plain = (int, float, str, bool, types.NoneType)
    ours = isinstance(hint, type) and hint not in plain
    return [hint] if ours else []


def _lines_of(kind: type, version: int) -> str:
    name = name_of(kind)
    if issubclass(kind, Message) and version < kind.SINCE:
        return ""
    if issubclass(kind, Enum):
        newer = newer_values(kind)
        values = [m.value for m in kind if newer.get(m.name, (0, ""))[0] <= version]
        return f"{name} is one of {' '.join(map(str, values))}\n"
    hints = hints_of(kind)
    if not is_dataclass(kind):
        return f"{name} is ({', '.join(_text_of(hint) for hint in hints.values())})\n"
    lines = [f"{name}\n"]
    for field in fields(kind):
        if is_read(field, version):
            may_lack = field.default is not MISSING or field.default_factory is not MISSING
            lines.append(
                f"  {field.name}{'?' if may_lack else ''}: {_text_of(hints[field.name])}\n"
            )
    return "".join(lines)


def _text_of(hint: Any) -> str:
    """An annotation as it matters to what is written: a name of an id is what it stands for."""
    if hasattr(hint, "__supertype__"):
        return _text_of(hint.__supertype__)
    args = [_text_of(arg) for arg in typing.get_args(hint) if arg is not Ellipsis]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(args)
    if origin is tuple and typing.get_args(hint)[-1] is Ellipsis:
        return f"[{args[0]}]"
    if origin is tuple:
        return f"({', '.join(args)})"
    if origin is frozenset:
        return f"set of {args[0]}"
    if origin is not None:
        return f"{{{': '.join(args)}}}"
    if hint is types.NoneType:
        return "nothing"
    return hint.__name__ if hint.__module__ == "builtins" else name_of(hint)


def texts() -> dict[Path, str]:
    """The texts of the newest versions, by the file that each is kept in."""
    return {
        KEPT / f"protocol-{PROTOCOL}.txt": wording(SAID, PROTOCOL),
        KEPT / f"format-{FORMAT}.txt": wording(KEPT_ON_DISKS, FORMAT),
    }


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    for path, text in texts().items():
        path.write_text(text, "utf-8")
