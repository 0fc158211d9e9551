"""Tables of what the API and the operations return."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rhinoctl.ids import BatchTime, InstanceId, Vnode
from rhinoctl.ops.cluster import Versions
from rhinoctl.ops.local import LocalView
from rhinoctl.ops.vnodes import format_vnodes
from rhinoctl.protocol.handover import ENDED, Kind, Phase
from rhinoctl.protocol.views import (
    Acknowledged,
    Finding,
    Health,
    JobList,
    JobView,
    OperationList,
    OperationView,
    StatusView,
    WorkerView,
)
from rhinoctl.render.units import ago, counted, instant, milliseconds, seconds, size

STYLES = {
    Health.OK: "green",
    Health.DEGRADED: "yellow",
    Health.DOWN: "red",
    Phase.COMPLETE: "green",
    Phase.ABORTED: "yellow",
    Phase.PAUSED: "yellow",
}


def columns(*names: str) -> Table:
    """A table without lines; a name that ends in ``>`` is of numbers, one that ends in ``|`` of
    words that are never broken."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        numeric = name.endswith(">")
        if numeric:
            table.add_column(name.rstrip(">"), justify="right", no_wrap=True)
        elif name.endswith("|"):
            table.add_column(name.rstrip("|"), no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def folded(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that begin with a host: those that say the same become one, with all their hosts."""
    hosts: dict[tuple[str, ...], list[str]] = {}
    for host, *said in rows:
        hosts.setdefault(tuple(said), []).append(host)
    return [(", ".join(names), *said) for said, names in hosts.items()]


def coloured(value: Health | Phase) -> Text:
    """A state, in its colour where there are colours."""
    return Text(value.value, STYLES.get(value, "cyan"))


def facts(pairs: Mapping[str, str]) -> Table:
    """Names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in pairs.items():
        table.add_row(Text(name, "bold"), Text(value))
    return table


def spaced(parts: Iterable[RenderableType | None]) -> Group:
    """The parts that there are, with an empty line between them."""
    there = [part for part in parts if part is not None]
    return Group(*[each for part in there for each in (Text(), part)][1:])


# --- the cluster ---------------------------------------------------------------------------------


def status_table(status: StatusView) -> RenderableType:
    """Workers, jobs, what runs, and what is wrong with what to type next."""
    title = Text.assemble(f"cluster {status.cluster}: ", coloured(status.health))
    return spaced(
        [
            title,
            _workers(status.workers),
            job_list_table(JobList(jobs=status.jobs)) if status.jobs else Text("no jobs"),
            losses_table(status.jobs),
            *(_note(job) for job in status.jobs if _fewer_instances(job)),
            *(_empty_note(job) for job in status.jobs if job.forfeited),
            *(_scrub_note(worker) for worker in status.workers if worker.found_bad),
            *(_links_note(worker) for worker in status.workers if worker.links_refused),
            _operations(status.operations) if status.operations else None,
            _findings(status.findings) if status.findings else None,
        ]
    )


def _workers(workers: Sequence[WorkerView]) -> Table:
    names = ("SEEN", "PID>", "INSTANCES>", "VNODES>", "COPIES>", "LOG>", "FREE>")
    table = columns("WORKER", "HEALTH", *names)
    for worker in workers:
        table.add_row(
            worker.id,
            _worker_state(worker),
            ago(worker.seen_s),
            str(worker.pid or "-"),
            str(worker.instances),
            str(worker.vnodes_owned),
            str(worker.vnodes_held),
            "-" if worker.log_bytes is None else size(worker.log_bytes),
            "-" if worker.free_bytes is None else size(worker.free_bytes),
        )
    return table


def _worker_state(worker: WorkerView) -> Text:
    parts: list[str | Text] = [coloured(worker.health)]
    if worker.room_low:
        parts += [", ", Text("disk nearly full", "yellow")]
    if worker.draining:
        there = worker.vnodes_owned or worker.vnodes_held
        parts += [", ", "draining" if there else "drained"]
    return Text.assemble(*parts)


def losses_table(jobs: Sequence[JobView]) -> RenderableType | None:
    """What would come of the loss of each worker, or None if none owns anything."""
    table = columns("JOB", "WORKER", "VNODES>", "RECOVERS IN>", "REPLAYS>", "OTHER COPIES")
    for job in jobs:
        for loss in job.losses:
            if not loss.vnodes:
                continue
            others = Text("of all")
            if loss.stranded:
                many = counted(loss.stranded, "vnode")
                others = Text(f"none of {many}: the job would wait for {loss.worker}", "yellow")
            table.add_row(
                job.name,
                loss.worker,
                str(loss.vnodes),
                seconds(loss.seconds),
                counted(loss.batches, "batch", "batches"),
                others,
            )
    return Group(Text("If a worker died now:"), table) if table.row_count else None


def _findings(findings: Sequence[Finding]) -> Group:
    lines = []
    for finding in findings:
        lines.append(Text.assemble(("finding: ", "yellow"), finding.what))
        lines.append(Text(f"    try: {finding.remedy}"))
    return Group(*lines)


def local_table(view: LocalView) -> RenderableType:
    """The processes of a local cluster."""
    table = columns("PROCESS", "STATE", "PID>", "LOG")
    for process in view.processes:
        state = Text("running", "green") if process.alive else Text("not running", "red")
        table.add_row(process.name, state, str(process.pid or "-"), process.log)
    done = {"started": view.started, "ended": view.ended}
    title = Text.assemble(f"cluster {view.cluster}: ", coloured(view.health))
    return spaced(
        [
            Group(
                title,
                facts(
                    {
                        "directory": view.directory,
                        "controller": view.controller,
                        **{name: ", ".join(what) for name, what in done.items() if what},
                    }
                ),
            ),
            table,
        ]
    )


def versions_table(versions: Versions) -> RenderableType:
    """What is installed."""
    return facts(
        {
            "rhinoctl": versions.rhinoctl,
            "protocol": str(versions.protocol),
            "format": str(versions.format),
            "python": versions.python,
            "pyspark": versions.pyspark or "not installed: pip install 'rhinoctl[spark]'",
        }
    )


def acknowledged_text(done: Acknowledged) -> RenderableType:
    """What was done."""
    return Text(done.detail)


# --- jobs ----------------------------------------------------------------------------------------


def job_list_table(jobs: JobList) -> RenderableType:
    """One line a job."""
    if not jobs.jobs:
        return Text("no jobs")
    names = ("JOB", "QUERY", "OPERATOR", "INSTANCES>", "VNODES>", "COPIES>", "STATE>", "BATCH>")
    table = columns(*names, "OPERATION")
    table.columns[0].no_wrap = True  # a name is for copying
    for job in jobs.jobs:
        table.add_row(
            job.name,
            _query(job),
            job.operator,
            str(len(job.instances)),
            str(job.vnodes),
            _copies_there(job),
            size(sum(instance.state_bytes for instance in job.instances)),
            str(job.batch or "-"),
            job.operation or "-",
        )
    return table


def job_table(job: JobView) -> RenderableType:
    """A job, its instances, and which workers hold further copies."""
    copies = {f"copies on {w}": format_vnodes(held) for w, held in _copies(job).items()}
    watermark = {} if job.watermark_ms is None else {"watermark": instant(job.watermark_ms)}
    kept = f"{counted(job.replication, 'further copy', 'further copies')} of each vnode kept"
    if job.lacking:
        lacking = counted(job.lacking, "copy is", "copies are")
        kept += f"; {lacking} lacking: see `rhinoctl groups show {job.name}`"
    if copies and not job.replication:
        kept += "; those below are left of a move, and go when no output is owed any more"
    there = _fewer_instances(job)
    fewer = {"instances": f"{there}; again: {_as_many_again(job)}"} if there else {}
    poison = {} if not _poisons(job) else {"cannot apply": _poisons(job)}
    set_back = {} if not _faults(job) else {"set back": _faults(job)}
    replicated = {} if not job.applied_bytes else {"replicated": _replicated(job)}
    return spaced(
        [
            facts(
                {
                    "job": f"{job.name} ({job.uid})",
                    "operator": job.operator,
                    "query": f"{_query(job)}, session {job.session}, id {job.query_id or '-'}",
                    "vnodes": str(job.vnodes),
                    "replication": kept,
                    **replicated,
                    "epoch": str(job.epoch),
                    "last batch": f"{job.batch or '-'} (generation/batch)",
                    **watermark,
                    **poison,
                    **set_back,
                    "operation": job.operation or "-",
                    **fewer,
                    **({"began empty": _began_empty(job)} if job.forfeited else {}),
                    **copies,
                }
            ),
            _instances(job),
            losses_table([job]),
        ]
    )


def _poisons(job: JobView) -> str:
    """Decided batches that instances cannot apply, and why; `rhinoctl status` says what to do."""
    return "; ".join(dict.fromkeys(each.poison for each in job.instances if each.poison))


def _faults(job: JobView) -> str:
    """What instances fail at, but for poison."""
    failing = (each for each in job.instances if each.fault and not each.poison)
    return "; ".join(f"{each.id} on {each.worker}: {each.fault}" for each in failing)


def _fewer_instances(job: JobView) -> str:
    """That a failover or a drain has left fewer instances than were asked for; empty if it has not,
    or if something is being done."""
    there = len(job.instances)
    if there >= job.instances_asked or job.operation is not None:
        return ""
    return f"{there} of the {job.instances_asked} instances asked for"


def _as_many_again(job: JobView) -> str:
    return f"`rhinoctl rescale {job.name} --instances {job.instances_asked}`"


def _scrub_note(worker: WorkerView) -> Group:
    """What was bad is replaced by itself; a disk with more and more of it should be, too."""
    bad = counted(worker.found_bad, "checkpoint")
    what = Text(f"note: worker {worker.id} has found {bad} bad since its agent started")
    return Group(what, Text("    its log has them; verify a job with `rhinoctl verify JOB`"))


def _links_note(worker: WorkerView) -> Group:
    """Right, but dear: what it costs, and what would spare it."""
    why = f"its file system makes no hard links ({worker.links_refused})"
    what = Text(f"note: checkpoints are copies on worker {worker.id}: {why}")
    cost = "each takes the room of all its files; another file system would spare that"
    return Group(what, Text(f"    {cost}"))


def _note(job: JobView) -> Group:
    """Nothing is wrong, but fewer instances share the work."""
    what = Text(f"note: job {job.name} runs with {_fewer_instances(job)}")
    return Group(what, Text(f"    for as many again: {_as_many_again(job)}"))


def _began_empty(job: JobView) -> str:
    """What results lack, and since when: no later batch makes up for it."""
    since: dict[BatchTime, list[Vnode]] = {}
    for vnode, batch in sorted(job.forfeited.items()):
        since.setdefault(batch, []).append(vnode)
    parts = [f"{format_vnodes(v)} after batch {batch}" for batch, v in sorted(since.items())]
    return f"vnodes {', '.join(parts)}: a failover was forced, and results since lack their state"


def _empty_note(job: JobView) -> Group:
    """Nothing can be done about it, and whoever reads the results must know."""
    what = Text(f"note: job {job.name} has lost state: {_began_empty(job)}", "yellow")
    return Group(what, Text("    see `rhinoctl op list` for the failover"))


def _copies_there(job: JobView) -> Text:
    if job.lacking:
        return Text(f"{counted(job.lacking, 'copy', 'copies')} lacking", "yellow")
    return Text(f"{job.replication} of {job.replication}" if job.replication else "-")


def _replicated(job: JobView) -> str:
    """What copies cost: the first thing to look at (docs/protocol/replication.md)."""
    ratio = job.fetched_bytes / job.applied_bytes
    return (
        f"{size(job.fetched_bytes)} of checkpoints sent for {size(job.applied_bytes)} of rows"
        f" applied: {ratio:.2f} bytes per byte"
    )


def _query(job: JobView) -> str:
    return "live" if job.live else "not running"


def _instances(job: JobView) -> Table:
    table = columns("INSTANCE", "WORKER", "READY", "PID>", "MEMORY>", "STATE>", "APPLIED>")
    table.add_column("VNODES", overflow="fold")
    for instance in job.instances:
        table.add_row(
            instance.id,
            instance.worker,
            Text("yes", "green") if instance.ready else Text("no", "red"),
            str(instance.pid or "-"),
            size(instance.rss_bytes),
            size(instance.state_bytes),
            str(instance.applied or "-"),
            format_vnodes(instance.vnodes),
        )
    return table


def _copies(job: JobView) -> dict[str, list[Vnode]]:
    held: dict[str, list[Vnode]] = {}
    for vnode, workers in job.members.items():
        for worker in workers:
            held.setdefault(worker, []).append(vnode)
    return dict(sorted(held.items()))


# --- operations ----------------------------------------------------------------------------------


def operation_list_table(operations: OperationList) -> RenderableType:
    """One line an operation, the newest first."""
    return _operations(operations.operations) if operations.operations else Text("no operations")


def _operations(operations: Sequence[OperationView]) -> Table:
    names = ("OPERATION", "JOB", "KIND", "PHASE", "VNODES>", "MOVED>", "PAUSE>", "TOTAL>")
    table = columns(*names, "PROGRESS")
    for view in operations:
        table.add_row(
            view.id,
            view.job,
            view.kind.value,
            coloured(view.phase),
            str(len(view.moves)),
            size(view.bytes_moved),
            milliseconds(view.pause_ms),
            milliseconds(view.total_ms),
            progress_words(view) or "-",
        )
    return table


def progress_words(view: OperationView) -> str:
    """How an operation fares, or why it was aborted. Every failover has a reason, so that with it
    nothing of how it fares would be said."""
    if view.kind is not Kind.FAILOVER:
        return view.reason or view.progress
    if view.phase is not Phase.COMPLETE:
        return view.progress
    spent = "" if view.recover_ms is None else f" in {milliseconds(view.recover_ms)}"
    if view.forfeited:
        many = counted(len(view.forfeited), "vnode")
        return f"{', '.join(view.lost)} given up, {many} began EMPTY; recovered{spent}"
    return f"recovered{spent}" + (f" without {', '.join(view.lost)}" if view.lost else "")


def operation_table(view: OperationView) -> RenderableType:
    """One operation: which vnodes go where, how long each phase took, what it cost."""
    if not view.moves and not view.id:
        return Text("nothing to do: the vnodes are there already")
    figures = _failover_facts if view.kind is Kind.FAILOVER else _move_facts
    return spaced(
        [
            Text.assemble(
                f"{view.kind.value} {view.id or '(a plan only)'} of job {view.job}: ",
                coloured(view.phase),
            ),
            facts(
                {
                    **figures(view),
                    "marker": str(view.marker or "-"),
                    **({"reverts": view.reverts} if view.reverts else {}),
                    **({"reason": view.reason} if view.reason else {}),
                }
            ),
            _moves(view) if view.moves else None,
        ]
    )


def operations_table(operations: OperationList) -> RenderableType:
    """Operations that began together, each as in `operation_table`."""
    return spaced(operation_table(view) for view in operations.operations)


def _move_facts(view: OperationView) -> dict[str, str]:
    return {
        "phases": _phases(view),
        "pause": _pause(view),
        "total": milliseconds(view.total_ms),
        "moved": f"{size(view.bytes_moved)} of {size(view.state_bytes)} of state",
    }


def _pause(view: OperationView) -> str:
    """What was measured, or that nothing was: a pause of 0 is a finding, too."""
    if view.pause_ms is None:
        if view.phase is not Phase.COMPLETE:
            return "-"
        if view.live:
            return "not known: no batch has been applied since"
        return f"none: no query was heard from, see `rhinoctl job show {view.job}`"
    if view.pause_ms > 0:
        return milliseconds(view.pause_ms)
    if not view.moves:
        return "0 ms: no vnode got another owner"
    if view.marker is not None and view.marker.batch < 0:
        return "0 ms: no batch had been before"
    return "0 ms: measured, and no batch took longer than usual"


def _failover_facts(view: OperationView) -> dict[str, str]:
    replayed = view.replayed_batches
    recovered = "no" if view.phase is Phase.ABORTED else "not yet"
    if view.recover_ms is not None:
        recovered = f"in {milliseconds(view.recover_ms)}"
    elif view.phase is Phase.COMPLETE:
        recovered = "not known: no batch has been applied since"
    return {
        "lost": ", ".join(view.lost) or "-",
        "vnodes": f"{len(view.moves)}, with {size(view.state_bytes)} of state",
        **({"EMPTY": _forfeited(view)} if view.forfeited else {}),
        "recovered": recovered,
        "replayed": "-" if replayed is None else f"{counted(replayed, 'batch', 'batches')} at most",
        "fetched": size(view.bytes_moved) + (" before the job went on" if view.recover_ms else ""),
        "phases": _phases(view),
        "total": milliseconds(view.total_ms),
    }


def _forfeited(view: OperationView) -> str:
    """Which vnodes begin with nothing, and what is lost with them as far as it is known."""
    known = view.forfeited_bytes
    much = "state of unknown size" if known is None else f"{size(known)} of state"
    seen = view.forfeited_seen
    when = ", never seen" if seen is None else f", last seen {instant(int(1000 * seen))}"
    begin = "began" if view.phase is Phase.COMPLETE else "begin"
    return f"vnodes {format_vnodes(view.forfeited)} {begin} empty; lost: {much}{when}"


def _phases(view: OperationView) -> str:
    spent = (f"{name} {milliseconds(ms)}" for name, ms in phase_times(view).items())
    return ", ".join(spent) or "-"


def plan_table(view: OperationView) -> RenderableType:
    """What a dry run found."""
    failover = view.kind is Kind.FAILOVER
    title = f"{view.kind.value} of job {view.job}: "
    if failover:
        title += f"{', '.join(view.lost)} would be given up; " if view.lost else ""
    if view.moves:
        then = "get another owner" if failover else "move"
        many = counted(len(view.moves), "vnode")
        line = f"{many} with {size(view.state_bytes)} of state would {then}"
        kept = Text(view.reason) if view.reason and not failover else None
        lost = Text(f"STATE IS LOST: {_forfeited(view)}", "red") if view.forfeited else None
        return spaced([Text(title + line), lost, _moves(view), kept])
    if view.phase is Phase.PLANNED:
        only = "no vnode gets another owner" if failover else "only instances without vnodes end"
        return Text(title + only)
    return operation_table(view)


def plans_table(plans: OperationList) -> RenderableType:
    """What a dry run found for each job."""
    return spaced(plan_table(view) for view in plans.operations)


def phase_times(view: OperationView) -> dict[str, float]:
    """How long each phase lasted, in milliseconds; the present or last one has no length."""
    entered = sorted(view.times.items(), key=lambda item: item[1])
    last = {phase.value for phase in ENDED}
    return {a: (end - begin) * 1000 for (a, begin), (_, end) in pairwise(entered) if a not in last}


def _moves(view: OperationView) -> Table:
    table = columns("FROM", "TO", "VNODES")
    routes: dict[tuple[InstanceId | None, InstanceId], list[Vnode]] = {}
    for vnode, target in view.moves.items():
        routes.setdefault((view.origins.get(vnode), target), []).append(vnode)
    for (origin, target), vnodes in sorted(routes.items(), key=lambda item: min(item[1])):
        table.add_row(origin or "-", target, format_vnodes(vnodes))
    return table
