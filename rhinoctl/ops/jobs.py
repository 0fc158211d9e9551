"""Jobs as the controller knows them."""

from rhinoctl.errors import UsageError
from rhinoctl.ops.cluster import connect
from rhinoctl.protocol.views import Acknowledged, BindRequest, JobList, JobView


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
