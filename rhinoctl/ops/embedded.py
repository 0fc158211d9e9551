"""What a command needs that runs a Spark job on a cluster of its own, both gone when it ends.

Everything that is started ends with us: the job's stdin is our lifeline to it, the controller and
the agents watch our process, and an orderly end, Ctrl-C and SIGTERM included, ends them itself.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rhinoctl.config import cluster as config
from rhinoctl.errors import RhinoError, UnwritableDirectory
from rhinoctl.ops import local
from rhinoctl.remote.child import Child
from rhinoctl.remote.local import Processes

END_S = 0.25
"""A child that has closed its output ends within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A cluster that lives as long as we: its controller, its token, a short path for sockets."""

    controller: str
    token_file: str
    run: str


@contextmanager
def working_directory(prefix: str, *, keep: bool, what: str, say: local.Say) -> Iterator[Path]:
    """A directory for one run. It stays, and is named, if `keep` or after an error; Ctrl-C is none.

    Raises UnwritableDirectory.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as fault:
        raise UnwritableDirectory(
            f"no directory for temporary files can be written: {fault}",
            remedy="let TMPDIR name a directory that this user may write in",
        ) from fault
    stays = True
    try:
        with _ending_in_order():
            yield directory
        stays = keep
    except KeyboardInterrupt:
        stays = keep
        raise
    finally:
        if stays:
            say(f"the {what}'s directory is kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def embedded_cluster(directory: Path, workers: int, say: local.Say) -> Iterator[Embedded]:
    """A cluster in a new directory; ended with its processes. Raises what bringing it up raises."""
    processes = Processes()
    try:
        request = local.UpRequest(directory=directory, workers=workers, parent=os.getpid())
        view = local.up(request, say, processes)
        known = config.read_cluster(directory)
        assert known is not None
        yield Embedded(
            controller=view.controller, token_file=str(directory / "token"), run=known.run
        )
    finally:
        if (directory / "cluster.json").exists():  # else it never came to be
            local.down(directory, lambda _: None, processes)


def job_environ(directory: Path, run: str) -> dict[str, str]:
    """What a Spark job is started with besides our environment.

    Spark's workers would take any python3 of the PATH, which may not have rhinoctl. What a job that
    is ended in the middle leaves behind is removed with our directories; its sockets need a path
    as short as the cluster's, `run`.
    """
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
        "TMPDIR": run,
    }


def next_event(
    child: Child, wait_s: float, doing: Callable[[], str], log: Path
) -> dict[str, Any] | None:
    """A job's event, or None if there is none in time. Raises RhinoError if the job ended, while
    `doing`, before it said that it was done."""
    try:
        event = child.event(wait_s)
        if event is None and child.returncode(0.0) is not None:
            event = child.event(wait_s)  # its last words, while the JVM still holds the pipe
            ended = event is None
        else:
            ended = False
    except EOFError:
        event, ended = None, True
    if ended:
        code = child.returncode(END_S)
        raise RhinoError(
            f"the job ended without a result while {doing()} (exit code {code})",
            remedy=f"see its log: {log}",
        )
    return event


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an orderly end; a further signal does not cut that short."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
