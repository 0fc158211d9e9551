"""`rhinoctl doctor`: gather the evidence, have it judged, and do what is safe about it."""

from dataclasses import dataclass, replace

from rhinoctl.control.client import ControlClient
from rhinoctl.errors import Exit, RhinoError, UsageError
from rhinoctl.ids import JobName
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.offset_log import read_offset_log
from rhinoctl.protocol.diagnosis import Facts, diagnose
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.findings import Finding, Fix, State, worst
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.views import CheckpointRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, and what was done about it."""

    cluster: str
    state: State
    findings: tuple[Finding, ...]
    done: tuple[str, ...] = ()


def doctor(
    cluster: str | None, *, job: str | None = None, checkpoint: str | None = None, fix: bool = False
) -> Diagnosis:
    """Judge the cluster, or one job and the workers; with `checkpoint`, that job's offset log of
    Spark, too. With `fix`, do what is safe. Raises UnknownJob, UsageError and NotRunning."""
    if checkpoint is not None and job is None:
        raise UsageError(
            "--checkpoint is the directory of one job's query, and no job is named",
            remedy="add --job JOB",
        )
    with connect(cluster) as client:
        name = None if job is None else client.job(job).name
        logs = {}
        if name is not None and checkpoint is not None:
            logs[name] = read_offset_log(checkpoint)
        evidence = _of_job(client.evidence(), name)
        findings = diagnose(Facts(cluster=evidence, offset_logs=logs))
        done = tuple(_done(client, finding) for finding in _fixable(findings)) if fix else ()
    return Diagnosis(cluster=evidence.cluster, state=worst(findings), findings=findings, done=done)


def exit_of(diagnosis: Diagnosis) -> Exit:
    """Degraded unless all is well."""
    return Exit.DONE if diagnosis.state is State.OK else Exit.DEGRADED


def _of_job(evidence: ClusterEvidence, name: JobName | None) -> ClusterEvidence:
    """The evidence without what is of other jobs only. What workers have stays: to know that a job
    is unknown, all names are needed."""
    if name is None:
        return evidence
    others = {job.uid for job in evidence.jobs if job.name != name}
    workers = tuple(
        worker
        if worker.report is None
        else replace(
            worker,
            report=replace(
                worker.report,
                jobs={u: r for u, r in worker.report.jobs.items() if u not in others},
            ),
        )
        for worker in evidence.workers
    )
    return replace(
        evidence,
        workers=workers,
        jobs=tuple(job for job in evidence.jobs if job.name == name),
        operations=tuple(o for o in evidence.operations if o.view.job == name),
    )


def _fixable(findings: tuple[Finding, ...]) -> list[Finding]:
    """One finding for each thing that is to be done."""
    first: dict[tuple[Fix, str], Finding] = {}
    for finding in findings:
        if finding.fix is not None:
            first.setdefault((finding.fix, finding.target), finding)
    return list(first.values())


def _done(client: ControlClient, finding: Finding) -> str:
    """Do it, and say what was done, or why it could not be."""
    try:
        if finding.fix is Fix.CHECKPOINT:
            asked = client.checkpoint(finding.target, CheckpointRequest())
            return (
                f"asked for checkpoints of job {finding.target} up to batch {asked.through}:"
                f" {asked.done} of {asked.vnodes} vnodes have one"
            )
        view = client.repair(finding.target)
        return (
            f"asked {named(view.asked) if view.asked else 'no worker'} again:"
            f" {finding.target} is {view.operation.phase.value}"
        )
    except RhinoError as error:
        return f"nothing about {finding.target}: {error.message}"
