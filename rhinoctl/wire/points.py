"""Fault points: a process kills or stops itself at a named step, for the crash matrix of the tests.

They are at the ports, since every step of a protocol that others can see, or that survives, goes
through one. Without RHINO_FAULT_POINTS a port is left as it is, so that they cost nothing.

With it, the variable names a directory. A file there with the name of a process is an `Order`; when
it has been carried out the file is called ``NAME.done``.
"""

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rhinoctl.protocol import codec
from rhinoctl.protocol.codec import CodecError

VARIABLE = "RHINO_FAULT_POINTS"

WIRE_POINTS = ("send", "reply")
DISK_POINTS = ("append", "sync", "write_atomic", "link", "rename", "remove")
STORE_POINTS = ("write",)

Port = TypeVar("Port")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a process is to do to itself: at the step number `skip`, from 0, of those that `does`
    (the port's method) with `holding` in the name of the message or file. `after` the step or
    before it; `stop` it (SIGSTOP) or kill it (SIGKILL)."""

    does: str
    holding: str = ""
    after: bool = False
    skip: int = 0
    stop: bool = False


def with_points(port: Port, process: str, methods: Iterable[str]) -> Port:
    """The port, with points before and after its methods if the environment asks for them."""
    directory = os.environ.get(VARIABLE)
    if directory:
        points = _Points(Path(directory) / process)
        for method in methods:
            setattr(port, method, points.around(getattr(port, method), method))
    return port


class _Points:
    """One port's points."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._order: Order | None = None
        self._seen = 0

    def around(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        def pointed(*arguments: Any, **named: Any) -> Any:
            subject = _subject(arguments)
            self._at(method, subject, after=False)
            result = call(*arguments, **named)
            self._at(method, subject, after=True)
            return result

        return pointed

    def _at(self, method: str, subject: str, *, after: bool) -> None:
        order = self._read()
        if order is None or order.after is not after or order.does != method:
            return
        if order.holding not in subject:
            return
        self._seen += 1
        if self._seen > order.skip:
            os.replace(self._path, f"{self._path}.done")
            os.kill(os.getpid(), signal.SIGSTOP if order.stop else signal.SIGKILL)

    def _read(self) -> Order | None:
        """The order, if there is one; steps are counted from when it came."""
        try:
            order = codec.loads(Order, self._path.read_bytes())
        except (FileNotFoundError, CodecError):
            order = None
        if order != self._order:
            self._order, self._seen = order, 0
        return order


def _subject(arguments: tuple[Any, ...]) -> str:
    """The kind of a message, the paths of files, or nothing."""
    match arguments:
        case (_, message, *_) if hasattr(message, "header"):
            return type(message).__name__
        case (str(path), *_):
            return path
        case (list() | tuple() | set() | frozenset() as paths, *_):
            return " ".join(map(str, paths))
        case _:
            return ""
