"""A real cluster and a real job for tests: processes to kill, events to await."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rhinoctl.control.client import ControlClient
from rhinoctl.ids import WorkerId
from rhinoctl.ops import local
from rhinoctl.protocol import codec
from rhinoctl.protocol.views import OperationView
from rhinoctl.remote.child import Child
from tests.integration.hosts import HostProcesses, Hosts, hosts_of_cluster

Event = dict[str, Any]
JOB = "demo"

SAME_PYTHON = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
"""Spark's workers would take any python3 of the PATH, which may not have rhinoctl."""


def ignore(_: str) -> None:
    """For progress that nobody reads."""


class Running:
    """An embedded cluster in a directory, and at most one run of the demo's job on it."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 3,
        disks: int = 1,
        hosts: Hosts | None = None,
        **config: object,
    ) -> None:
        """With `hosts`, a worker on each of them; they are not closed."""
        self.directory = directory
        self.cluster = directory / "cluster"
        self.events: list[Event] = []
        self._workers = workers
        self._disks = disks
        self._config = config
        self._child: Child | None = None
        self.hosts: Mapping[WorkerId, str] = {}
        (directory / "job").mkdir(parents=True)
        if hosts is not None:
            self._workers = len(hosts.names)
            self.hosts = hosts_of_cluster(self.cluster, hosts)
        self.up()
        view = local.status(self.cluster)
        self.controller = view.controller
        self.client = ControlClient(view.controller, str(self.cluster / "token"))

    def up(self) -> None:
        """Start what does not run of the cluster."""
        local.up(
            local.UpRequest(
                directory=self.cluster,
                workers=self._workers,
                disks=self._disks,
                parent=os.getpid(),
            ),
            ignore,
            HostProcesses(self.hosts),
        )

    def start(self, **changes: object) -> None:
        """Start the job, or start it again where it was."""
        config = {
            "job": JOB,
            "controller": self.controller,
            "token_file": str(self.cluster / "token"),
            "directory": str(self.directory / "job"),
            "query": "counts",
            "rate": 4000,
            "seconds": 10,
            "state_mb": 0,
            "keys": 5000,
            "instances": 2,
            "vnodes": 16,
            "seed": 7,
            **self._config,
            **changes,
        }
        path = self.directory / "job.json"
        path.write_bytes(codec.dumps(config))
        log = self.directory / "job.log"
        self._child = Child("rhinoctl.spark.demo", str(path), log=log, environ=SAME_PYTHON)

    def until(self, wanted: Callable[[Event], bool], *, within_s: float = 120.0) -> Event:
        """Read events until one is wanted; fails with the last ones and the log's end."""
        assert self._child is not None
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                event = self._child.event(1.0)
            except EOFError:
                break
            if event is not None:
                self.events.append(event)
                if wanted(event):
                    return event
                if event["event"] == "error":
                    break
        log = (self.directory / "job.log").read_text()[-3000:]
        raise AssertionError(f"not seen; last events {self.events[-3:]}; log: {log}")

    def batches(self, count: int) -> Event:
        """Wait for so many more batches with rows."""
        found = self.until(_has_rows)
        for _ in range(count - 1):
            found = self.until(_has_rows)
        return found

    def result(self) -> Event:
        """The job's verdict."""
        return self.until(lambda e: e["event"] == "result", within_s=180.0)

    def error(self) -> Event:
        """The error with which the job ends, from its own lines."""
        assert self._child is not None
        while True:
            event = self._child.event(120.0)
            assert event is not None
            if event["event"] == "error":
                return event

    def kill_job(self) -> None:
        """SIGKILL the driver, and wait until it and what it started are gone."""
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)
        self._child.close()
        self._child = None

    def exit_code(self) -> int | None:
        """How the job ended."""
        assert self._child is not None
        return self._child.returncode(60.0)

    def kill(self, name: str) -> int:
        """SIGKILL an agent or the controller by its name; returns its pid once it is gone."""
        pid = self._process(name).pid
        os.kill(pid, signal.SIGKILL)
        self.await_end(name)
        return pid

    def restart(self, name: str) -> None:
        """End a process as `local down` does, an agent with its instances, and start it again."""
        process = self._process(name)
        os.kill(process.pid, signal.SIGTERM)
        self.await_end(name)
        self.up()

    def await_end(self, name: str) -> None:
        """Wait until an agent or the controller has ended."""
        deadline = time.monotonic() + 30.0
        while self._process(name).alive and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The job's own process."""
        assert self._child is not None
        return self._child.pid

    def pid_of(self, name: str) -> int:
        """An agent or the controller."""
        return self._process(name).pid

    def _process(self, name: str) -> local.LocalProcess:
        return next(p for p in local.status(self.cluster).processes if p.name == name)

    def ended(self, op: str, *, within_s: float = 60.0) -> OperationView:
        """Wait for the end of an operation."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            view = self.client.operation(op)
            if view.phase.value in ("complete", "aborted"):
                return view
            time.sleep(0.1)
        raise AssertionError(f"{op} is still {self.client.operation(op)}")

    def close(self) -> None:
        """End everything."""
        if self._child is not None:
            self._child.close()
        self.client.close()
        local.down(self.cluster, ignore)


Start = Callable[..., Running]
"""Makes a cluster with a job's configuration."""


@contextlib.contextmanager
def starting(directory: Path) -> Iterator[Start]:
    """Clusters in directories of their own, ended with the block."""
    made: list[Running] = []

    def make(**config: object) -> Running:
        made.append(Running(directory / str(len(made)), **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _has_rows(event: Event) -> bool:
    return event["event"] == "batch" and event["rows_in"] > 0
