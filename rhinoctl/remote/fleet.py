"""Many hosts at once: as many as are allowed, each with an outcome of its own."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from threading import BoundedSemaphore, Event
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from rhinoctl.errors import RhinoError
from rhinoctl.remote.host import Host

T = TypeVar("T")
H = TypeVar("H", bound=Host)

PARALLEL: Final = 32
"""Hosts at once: connections are cheap, but each that does not answer keeps a thread."""


class Gate:
    """A jump host's bound: so many of the hosts behind it are dealt with at once, each in a
    ``with``."""

    def __init__(self, sessions: int) -> None:
        self.sessions = sessions
        self._free = BoundedSemaphore(sessions)

    def __enter__(self) -> None:
        self._free.acquire()

    def __exit__(self, *_: object) -> None:
        self._free.release()


class Fleet(Generic[H]):
    """Hosts by name; `jumps` has the gate of each that is behind a jump host. Use it in a ``with``:
    no connection is left afterwards."""

    def __init__(self, hosts: Mapping[str, H], jumps: Mapping[str, Gate]) -> None:
        self._hosts = dict(hosts)
        self._jumps = jumps
        self.interrupted = Event()
        """Set by Ctrl-C: whoever does several things with a host begins no other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self._hosts.values():
            host.close()

    def each(
        self, do: Callable[[H], T], names: Iterable[str] | None = None
    ) -> dict[str, T | RhinoError]:
        """Do something with every host, or with those named; what came of it, or the error, by
        name in the hosts' order. What is no RhinoError is raised, once all have ended."""
        wanted = list(self._hosts if names is None else names)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="rhino-host") as pool:
            asked = {name: pool.submit(self._one, do, name) for name in wanted}
            try:
                wait(asked.values())
            except KeyboardInterrupt:
                self.interrupted.set()
                # Threads end with their connections; those that have not begun never do.
                pool.shutdown(wait=False, cancel_futures=True)
                for host in self._hosts.values():
                    host.close()
                raise
        return {name: future.result() for name, future in asked.items()}

    def at_once(self, names: Iterable[str]) -> bool:
        """Whether something can be done with all of these at the same time."""
        wanted = list(names)
        behind = Counter(self._jumps[name] for name in wanted if name in self._jumps)
        return len(wanted) <= PARALLEL and all(n <= gate.sessions for gate, n in behind.items())

    def _one(self, do: Callable[[H], T], name: str) -> T | RhinoError:
        with self._jumps.get(name, nullcontext()):
            try:
                return do(self._hosts[name])
            except RhinoError as fault:
                return fault
