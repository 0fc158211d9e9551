"""The controller's own loss: its store made anew, backed up and restored."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rhinoctl.config import backup as files
from rhinoctl.config import cluster as config
from rhinoctl.errors import Exit
from rhinoctl.ids import WorkerId
from rhinoctl.ops import controller_away as away
from rhinoctl.ops.cluster import connect
from rhinoctl.protocol.views import RecoverRequest, RecoveryView
from rhinoctl.remote.ssh import Login


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupView:
    """A backup that was written or restored, of a cluster on hosts if `deployed`. `reign` and
    `number` say how old its store is, both 0 for one whose controller never ran; `written_at` is in
    wall seconds."""

    file: str
    cluster: str
    version: str
    written_at: float
    reign: int
    number: int
    size: int
    restored: bool
    deployed: bool = False


def recover(cluster: str | None, *, without: Sequence[str], dry_run: bool) -> RecoveryView:
    """Have the controller make its store anew from the workers. Raises Refused while a worker is
    silent that is not left out, and UnknownWorker."""
    request = RecoverRequest(without=tuple(map(WorkerId, without)), dry_run=dry_run)
    with connect(cluster) as client:
        return client.recover(request)


def exit_of_recovery(view: RecoveryView, *, dry_run: bool) -> Exit:
    """A plan that would do something has changes."""
    return Exit.HAS_CHANGES if dry_run and view.needed else Exit.DONE


def backup(directory: Path, file: str) -> BackupView:
    """Write store and keys into a new file; see `rhinoctl.config.backup.write_backup`."""
    path = _path(file)
    return _view(path, files.write_backup(directory, path, now=time.time()), restored=False)


def restore(directory: Path, file: str) -> BackupView:
    """Put them back; see `rhinoctl.config.backup.restore_backup`. Raises Busy, too."""
    path = _path(file)
    with config.claimed(directory):
        return _view(path, files.restore_backup(directory, path), restored=True)


def backup_deployed(inventory: Path, file: str, login: Login) -> BackupView:
    """The same for a cluster on hosts; see `rhinoctl.ops.controller_away.backup`."""
    path = _path(file)
    return _view(path, away.backup(inventory, path, login), restored=False, deployed=True)


def restore_deployed(inventory: Path, file: str, login: Login) -> BackupView:
    """The same for a cluster on hosts; see `rhinoctl.ops.controller_away.restore`."""
    path = _path(file)
    return _view(path, away.restore(inventory, path, login), restored=True, deployed=True)


def _path(file: str) -> Path:
    return Path(file).expanduser().absolute()


def _view(
    path: Path, header: files.BackupHeader, *, restored: bool, deployed: bool = False
) -> BackupView:
    return BackupView(
        file=str(path),
        cluster=header.cluster,
        version=header.version,
        written_at=header.written_at,
        reign=header.claim.reign if header.claim is not None else 0,
        number=header.claim.number if header.claim is not None else 0,
        size=path.stat().st_size,
        restored=restored,
        deployed=deployed,
    )
