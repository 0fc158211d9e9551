"""A local cluster's file: who belongs to it, where everything is, and which processes were started.

Invariants:

1. Under a directory's name there is the old `cluster.json` or the new one, never half a file.
2. Only who holds `claimed` writes it.
3. The token is never in it, only the name of the token's file, which has mode 0600.
"""

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rhinoctl import __version__, limits
from rhinoctl.errors import Busy, ForeignManifest, UnwritableDirectory
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.starting import CONTROLLER as CONTROLLER

FORMAT = 1
"""Of the file; another one is refused, not guessed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """A worker of the inventory: where its agent listens, its disk and its settings file; `disks`
    are the directories of further disks that it was given at its start."""

    address: str
    disk: str
    settings: str
    disks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A local cluster. `processes` are those started last, as (pid, start time in clock ticks) by
    name; `run` is the short directory of the Unix sockets; `version` wrote the file."""

    format: int
    version: str
    cluster: str
    controller: str
    token_file: str
    run: str
    workers: Mapping[WorkerId, WorkerEntry]
    cache_mb: int
    buffer_mb: int
    replay_target_s: float = limits.REPLAY_TARGET_S
    lease_s: float = limits.LEASE_OF_WORKER_S
    replication_mb_s: int = 0
    auto_failover: bool = True
    require_hardlink: bool = False
    processes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """All processes that belong to the cluster, the controller first."""
        return (CONTROLLER, *self.workers)


def at_port(port: int) -> str:
    """The address of a controller on a port of this machine, instead of a Unix socket."""
    return f"http://127.0.0.1:{port}"


def new_cluster(directory: Path, *, cache_mb: int, buffer_mb: int) -> ClusterFile:
    """A cluster of its own identity, without workers yet."""
    cluster = secrets.token_hex(8)
    run = f"/tmp/rhino-{cluster[:8]}"
    return ClusterFile(
        format=FORMAT,
        version=__version__,
        cluster=cluster,
        controller=f"unix://{run}/controller.sock",
        token_file=str(directory / "token"),
        run=run,
        workers={},
        cache_mb=cache_mb,
        buffer_mb=buffer_mb,
    )


def with_workers(
    cluster: ClusterFile, directory: Path, count: int, disks: int | None = None
) -> ClusterFile:
    """The cluster with workers w1 … w`count`, each with so many `disks`; those it has stay as they
    are, and so do the disks that they have. None: as many as the others have."""
    workers = dict(cluster.workers)
    wanted = disks or disks_of(cluster)
    for number in range(1, count + 1):
        name = WorkerId(f"w{number}")
        if name not in workers:
            workers[name] = WorkerEntry(
                address=f"grpc+unix://{cluster.run}/{name}.sock",
                disk=str(directory / "workers" / name),
                settings=str(directory / "workers" / f"{name}.json"),
            )
        more = tuple(str(directory / "disks" / f"{name}-{n}") for n in range(2, wanted + 1))
        if len(more) > len(workers[name].disks):
            workers[name] = replace(workers[name], disks=more)
    return replace(cluster, workers=workers)


def disks_of(cluster: ClusterFile | None) -> int:
    """How many disks the workers were given at their start, that with the most."""
    workers = () if cluster is None else tuple(cluster.workers.values())
    return max((1 + len(each.disks) for each in workers), default=1)


def read_cluster(directory: Path) -> ClusterFile | None:
    """The directory's cluster; None if it has none. Raises ForeignManifest for what is not ours."""
    path = directory / "cluster.json"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        raise _foreign(path, str(fault)) from fault
    try:
        image = codec.loads_image(data)
        if image.get("format") != FORMAT:
            wrote, has = image.get("version"), image.get("format")
            raise _foreign(path, f"rhinoctl {wrote} wrote it in format {has}, not {FORMAT}")
        cluster: ClusterFile = codec.from_json(ClusterFile, image)
    except codec.CodecError as fault:
        raise _foreign(path, str(fault)) from fault
    return cluster


def check_version(directory: Path, cluster: ClusterFile) -> None:
    """Raise ForeignManifest if a release of another minor version made the directory: its state may
    have another format. Ending its processes is allowed all the same."""
    if cluster.version.split(".")[:2] != __version__.split(".")[:2]:
        reason = f"rhinoctl {cluster.version} made it, and this is {__version__}"
        raise _foreign(directory / "cluster.json", reason)


def write_cluster(directory: Path, cluster: ClusterFile) -> None:
    """Replace the file. Raises UnwritableDirectory."""
    replace_file(directory / "cluster.json", codec.dumps(cluster))


def make_token(path: str) -> None:
    """Write a fresh token that only this user may read, if there is none yet."""
    if not os.path.exists(path):
        replace_file(Path(path), f"{secrets.token_hex(32)}\n".encode())


ELSEWHERE = "name another directory with --cluster"


def replace_file(path: Path, data: bytes, mode: int = 0o600, *, otherwise: str = ELSEWHERE) -> None:
    """Write a file whole, durably and for this user only, or with another mode. Raises
    UnwritableDirectory, of which `otherwise` is the remedy if its directory is to stay as it is.

    `state.disk.write_atomic` for a layer that may not import `state` (design, section 12).
    """
    with writing_in(path.parent, otherwise):
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


@contextmanager
def claimed(
    directory: Path,
    *,
    holder: str = "another `rhinoctl local` command is at work",
    look: str = "wait until it has ended, then look with `rhinoctl local status`",
) -> Iterator[None]:
    """Be the only one that changes this cluster; the directory is made if it is not there.

    Raises Busy while another command holds it, and UnwritableDirectory. The kernel lets go when the
    holder dies.
    """
    with writing_in(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise Busy(f"{holder} in {directory}", remedy=look) from fault
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing_in(directory: Path, otherwise: str = ELSEWHERE) -> Iterator[None]:
    """Turn the system's refusals to write in a directory into UnwritableDirectory."""
    try:
        yield
    except OSError as fault:
        reason = fault.strerror or str(fault)
        missing = isinstance(fault, FileNotFoundError)
        raise UnwritableDirectory(
            f"cannot write in {directory}: {reason}",
            remedy=f"{'make it first' if missing else 'correct its owner and mode'},"
            f" or {otherwise}",
        ) from fault


def _foreign(path: Path, reason: str) -> ForeignManifest:
    return ForeignManifest(
        f"{path} cannot be used: {reason}",
        remedy="name another directory with --cluster, or use the version that made this one",
    )
