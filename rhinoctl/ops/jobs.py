"""Jobs as the controller knows them."""

from rhinoctl.errors import UsageError
from rhinoctl.ops.cluster import connect
from rhinoctl.protocol.views import Acknowledged, BindRequest, JobList, JobView, SetJob


def list_jobs(cluster: str | None) -> JobList:
    """All jobs, by name."""
    with connect(cluster) as client:
        return client.jobs()


def show_job(cluster: str | None, name: str) -> JobView:
    """One job with its instances. Raises UnknownJob."""
    with connect(cluster) as client:
        return client.job(name)


def delete_job(cluster: str | None, name: str) -> Acknowledged:
    """Forget a job and remove its state from all workers. Raises UnknownJob, and Busy while it
    runs."""
    with connect(cluster) as client:
        return client.delete(name)


def bind_job(cluster: str | None, name: str, *, new_stream: bool) -> Acknowledged:
    """Let the job's next run be of another query. Raises UnknownJob, and SecondSession while one
    runs."""
    if not new_stream:
        raise UsageError(
            "it is not said what to accept for the job",
            remedy="add --new-stream: the next run opens a new generation over the state as it is",
        )
    with connect(cluster) as client:
        return client.bind(name, BindRequest(new_stream=True))


def set_job(cluster: str | None, name: str, *, setting: str) -> Acknowledged:
    """Change what a job wishes for, by ``replication=2``. Raises UsageError, UnknownJob and
    Refused."""
    key, equals, value = setting.partition("=")
    if not equals or key != "replication":
        raise UsageError(
            f"{setting!r} is nothing that can be set",
            remedy="what can be set: replication=R, the number of further copies of each vnode",
        )
    if not (value.isascii() and value.isdigit()):
        raise UsageError(
            f"{value!r} is no number of copies",
            remedy="write a whole number from 0 (no further copies), such as replication=1",
        )
    with connect(cluster) as client:
        return client.set_job(name, SetJob(replication=int(value)))
