"""`rhinoctl replay`: whatever a run was, it is gone on with as that."""

from collections.abc import Callable

from rhinoctl.config.runs import find_run
from rhinoctl.ops import upgrade
from rhinoctl.ops.deploy import resume
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.ops.rollout import REAL, Means
from rhinoctl.ops.rollout_views import DeployView, Progress
from rhinoctl.remote.ssh import Login


def replay(
    run: str,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means = REAL,
) -> DeployView:
    """Go on with a run where it stopped, with the inventory that it was begun with. Raises
    UnknownRun, Busy if another inventory was deployed since, and what its command does."""
    old = find_run(clusters_directory(), run)
    if old.command == upgrade.COMMAND:
        return upgrade.resume_upgrade(old, login, progress, agree, means)
    return resume(run, login, progress, agree, means)
