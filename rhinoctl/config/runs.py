"""What a command did on the hosts, step by step, as a file: to look at, and to go on from.

`runs/ID.json` is the run, written anew after each step, so that a command that is killed leaves a
true account; `runs/ID.commands` has a line for each command that was run on a host. What was piped
into a command is in neither.

Going on needs none of it but the inventory: hosts are asked again, and what is done is not planned.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

from rhinoctl.config.cluster import replace_file, writing_in
from rhinoctl.errors import Busy, ForeignManifest, UnknownRun
from rhinoctl.protocol import codec

FORMAT: Final = 1


class HostState(Enum):
    """How a host ended. NOT_TRIED: what it needs is not there, so it was left as it is."""

    PLANNED = "planned"
    UNCHANGED = "unchanged"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    NOT_TRIED = "not tried"


class RunState(Enum):
    """How a run ended; RUNNING, too, for one whose process was killed."""

    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step; `seconds` is None while it is at work, `fault` says why it failed."""

    what: str
    began: float
    seconds: float | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """A host of a run."""

    state: HostState
    steps: tuple[StepRecord, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run. `inventory` is the text that it was begun with, `limit` the hosts it was for (none:
    all), `resumes` the run that it goes on with; `by` and `back` are those of an upgrade."""

    format: int
    id: str
    command: str
    cluster: str
    began: float
    file: str
    inventory: str
    limit: tuple[str, ...] = ()
    resumes: str = ""
    by: str = ""
    back: bool = False
    state: RunState = RunState.RUNNING
    ended: float | None = None
    hosts: Mapping[str, HostRecord] = field(default_factory=dict)


class Journal:
    """The account of a run that is under way; threads of several hosts write it."""

    def __init__(self, directory: Path, run: RunFile, now: Callable[[], float] = time.time) -> None:
        self.run = run
        self._directory = directory
        self._now = now
        self._lock = threading.Lock()
        with writing_in(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(run)

    def audit(self, entry: object) -> None:
        """Keep a command that was run."""
        path = self._directory / f"{self.run.id}.commands"
        with self._lock, writing_in(self._directory):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(codec.dumps(entry) + b"\n")

    def begin(self, host: str, what: str) -> None:
        """A step on a host begins."""
        with self._lock:
            old = self._host(host)
            steps = (*old.steps, StepRecord(what=what, began=self._now()))
            self._put(host, replace(old, state=HostState.RUNNING, steps=steps))

    def end(self, host: str, fault: str = "") -> None:
        """The last step that began on a host has ended."""
        with self._lock:
            old = self._host(host)
            *before, last = old.steps
            last = replace(last, seconds=self._now() - last.began, fault=fault)
            self._put(host, replace(old, steps=(*before, last)))

    def settle(self, host: str, state: HostState, reason: str = "") -> None:
        """A host has come to its end."""
        with self._lock:
            self._put(host, replace(self._host(host), state=state, reason=reason))

    def close(self, state: RunState) -> None:
        """The run has ended."""
        with self._lock:
            self._write(replace(self.run, state=state, ended=self._now()))

    def _host(self, host: str) -> HostRecord:
        return self.run.hosts.get(host, HostRecord(state=HostState.PLANNED))

    def _put(self, host: str, record: HostRecord) -> None:
        self._write(replace(self.run, hosts={**self.run.hosts, host: record}))

    def _write(self, run: RunFile) -> None:
        self.run = run
        replace_file(self._directory / f"{run.id}.json", codec.dumps(run))


def new_run(
    *,
    command: str,
    cluster: str,
    file: str,
    inventory: str,
    limit: tuple[str, ...] = (),
    resumes: str = "",
    by: str = "",
    back: bool = False,
    now: Callable[[], float] = time.time,
) -> RunFile:
    """A run that begins now; its id begins with the time."""
    began = now()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(began))
    return RunFile(
        format=FORMAT,
        id=f"{stamp}-{secrets.token_hex(2)}",
        command=command,
        cluster=cluster,
        began=began,
        file=file,
        inventory=inventory,
        limit=limit,
        resumes=resumes,
        by=by,
        back=back,
    )


def find_run(clusters: Path, run: str) -> RunFile:
    """A run, in whichever cluster's directory it is. Raises UnknownRun and ForeignManifest."""
    found = sorted(clusters.glob(f"*/runs/{run}.json")) if run.replace("-", "").isalnum() else []
    if not found:
        latest = sorted((path.stem for path in clusters.glob("*/runs/*.json")), reverse=True)[:3]
        raise UnknownRun(
            f"there is no run {run}",
            remedy=f"the latest are {', '.join(latest)}"
            if latest
            else "begin with `rhinoctl deploy`; it says the run's name",
        )
    return read_run(found[0])


def read_run(path: Path) -> RunFile:
    """A run's file. Raises ForeignManifest."""
    try:
        run: RunFile = codec.loads(RunFile, path.read_bytes())
    except (OSError, codec.CodecError) as fault:
        raise ForeignManifest(
            f"{path} cannot be used: {fault}", remedy="deploy anew with `rhinoctl deploy`"
        ) from None
    return run


def check_latest(directory: Path, run: RunFile) -> None:
    """Raise Busy if another inventory was deployed since: to go on would take that one back."""
    runs = [read_run(path) for path in directory.glob("*.json")]
    others = [other for other in runs if other.command == run.command]
    for other in sorted(others, key=lambda each: each.began, reverse=True):
        if other.began > run.began and other.inventory != run.inventory:
            raise Busy(
                f"run {run.id} is stale: {other.id} has deployed another inventory since",
                remedy=f"go on with that one, `rhinoctl replay {other.id}`, or deploy anew",
            )
