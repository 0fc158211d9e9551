"""Small files of an agent, as values."""

from typing import TypeVar

from rhinoctl.errors import CorruptFile
from rhinoctl.protocol import codec
from rhinoctl.protocol.ports import Disk

T = TypeVar("T")


def read_value(disk: Disk, kind: type[T], path: str) -> T:
    """What was written to a file. Raises CorruptFile for what is no such value, and OSError."""
    try:
        found: T = codec.loads(kind, disk.read(path))
    except codec.CodecError as fault:
        raise CorruptFile(
            f"{path} is damaged: {fault}", remedy="see `rhinoctl doctor` for what may be done"
        ) from fault
    return found
