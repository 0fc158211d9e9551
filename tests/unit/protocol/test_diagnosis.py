"""Doctor's judgement: one case for each kind of finding, and none of a sound cluster."""

from dataclasses import replace
from typing import Any

import pytest

from rhinoctl import limits
from rhinoctl.ids import (
    BASE,
    Attempt,
    BatchTime,
    InstanceId,
    JobName,
    JobUid,
    OpId,
    Vnode,
    WorkerId,
)
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.diagnosis import Facts, diagnose
from rhinoctl.protocol.disks import DiskState
from rhinoctl.protocol.evidence import (
    ClusterEvidence,
    JobEvidence,
    OffsetLog,
    OperationEvidence,
    WorkerEvidence,
)
from rhinoctl.protocol.findings import Check, Finding, Fix, State, worst
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.liveness import Verdict
from rhinoctl.protocol.records import Position, RecordId, offsets_digest
from rhinoctl.protocol.verification import BadCheckpoint
from rhinoctl.protocol.views import OperationView
from tests.unit.protocol.handover_walk import epoch
from tests.unit.protocol.test_rooms import disk

W1, W2 = WorkerId("w1"), WorkerId("w2")
I0, I1 = InstanceId("i0"), InstanceId("i1")
JOB, UID = JobName("clicks"), JobUid("clicks-1")
EPOCH = epoch(3, {I0: W1, I1: W2}, (I0, "w2"), (I1, "w1"))
ALONE = epoch(3, {I0: W1, I1: W2}, (I0, ""), (I1, ""))
NOW = BatchTime(0, 40)
DIGEST = offsets_digest('["40"]')
DECIDED = RecordId(Position(0, 40, 0), Attempt(2, 40))


def vnode(use: VnodeUse, **changes: Any) -> m.VnodeReport:
    fields: dict[str, Any] = {"use": use, "covers": BatchTime(0, 35)}
    if use is VnodeUse.OWNED:
        fields["applied"] = NOW
    return m.VnodeReport(**{**fields, **changes})


def job_report(instance: InstanceId, owned: int, **changes: Any) -> m.JobReport:
    ready = m.InstanceReport(pid=7, incarnation=1, ready=True, applied=NOW)
    fields: dict[str, Any] = {
        "session": 2,
        "sealed": DECIDED,
        "decided": DECIDED,
        "epoch": EPOCH,
        "epoch_from": BatchTime(0, 9),
        "released": BatchTime(0, 39),
        "log_bytes": 1000,
        "vnodes": {
            Vnode(owned): vnode(VnodeUse.OWNED),
            Vnode(1 - owned): vnode(VnodeUse.HELD),
        },
        "instances": {instance: ready},
        "offsets": DIGEST,
    }
    return m.JobReport(**{**fields, **changes})


REPORTS = {W1: job_report(I0, 0), W2: job_report(I1, 1)}


def worker(name: WorkerId, jobs: dict[JobUid, m.JobReport] | None = None, **changes: Any) -> Any:
    free, disks = changes.pop("free_bytes", 1 << 40), changes.pop("disks", ())
    unreadable = changes.pop("unreadable", {})
    report = m.WorkerReport(
        header=m.Header(cluster="c"),
        worker=name,
        pid=1,
        wall=0.0,
        free_bytes=free,
        disks=disks,
        jobs={UID: REPORTS[name]} if jobs is None else jobs,
        unreadable=unreadable,
    )
    fields: dict[str, Any] = {
        "id": name,
        "seen_s": 0.2,
        "live": True,
        "verdict": Verdict.ALIVE,
        "detail": "",
        "draining": False,
        "report": report,
    }
    return WorkerEvidence(**{**fields, **changes})


def job(**changes: Any) -> JobEvidence:
    fields: dict[str, Any] = {
        "name": JOB,
        "uid": UID,
        "deleted": False,
        "live": True,
        "session": 2,
        "generation": 0,
        "query_id": "q1",
        "replication": 1,
        "kept": 3,
        "epoch": EPOCH,
        "epoch_from": BatchTime(0, 9),
        "lacking": 0,
        "replay_s": 0.3,
        "operation": "",
        "braked": "",
    }
    return JobEvidence(**{**fields, **changes})


def cluster(*workers: WorkerEvidence, **changes: Any) -> ClusterEvidence:
    named = {w.id: w for w in workers}
    every = tuple(named.get(name, worker(name)) for name in (W1, W2))
    fields: dict[str, Any] = {
        "cluster": "c",
        "wall": 1_000.0,
        "store_fault": "",
        "replay_target_s": 1.0,
        "workers": every,
        "jobs": (job(),),
        "operations": (),
    }
    return ClusterEvidence(**{**fields, **changes})


def at_w1(**changes: Any) -> ClusterEvidence:
    """The cluster, in which w1 reports something else of the job."""
    return cluster(worker(W1, {UID: replace(REPORTS[W1], **changes)}))


TORN = m.Unreadable(fault="segment 0-621.seg was decided and cannot be read", damaged=True)
FOREIGN = m.Unreadable(fault="it has no spec.json")


def blind(fault: m.Unreadable, uid: JobUid = UID) -> WorkerEvidence:
    """w1, which cannot read what it has of a job."""
    seen: WorkerEvidence = worker(W1, {}, unreadable={uid: fault})
    return seen


def without_w1() -> JobEvidence:
    """The job, in which w1 has no part any more."""
    return job(epoch=epoch(4, {I1: W2}, (I1, ""), (I1, "")), kept=4)


READ_ONLY = "it cannot be written to: Read-only file system"


def with_vnode(number: int, **changes: Any) -> ClusterEvidence:
    known = REPORTS[W1].vnodes
    return at_w1(vnodes={**known, Vnode(number): replace(known[Vnode(number)], **changes)})


def running(phase: Phase, kind: Kind = Kind.HANDOVER, deadline: float = 900.0) -> Any:
    view = OperationView(
        id=OpId("op-4"),
        job=JOB,
        kind=kind,
        phase=phase,
        moves={},
        origins={},
        reason="",
        times={},
        marker=None,
        pause_ms=None,
        total_ms=None,
        bytes_moved=0,
        state_bytes=0,
        progress="",
    )
    waits = ("worker w2 to report epoch 4",)
    return cluster(operations=(OperationEvidence(view=view, deadline=deadline, waits_for=waits),))


def log(**changes: Any) -> OffsetLog:
    fields: dict[str, Any] = {
        "directory": "ck",
        "query_id": "q1",
        "newest": 40,
        "committed": 39,
        "digests": {39: "a", 40: DIGEST},
    }
    return OffsetLog(**{**fields, **changes})


def judged(seen: ClusterEvidence, offsets: OffsetLog | None = None) -> tuple[Finding, ...]:
    logs = {} if offsets is None else {JOB: offsets}
    return diagnose(Facts(cluster=seen, offset_logs=logs))


def test_a_sound_cluster_has_no_finding() -> None:
    assert judged(cluster(), log()) == ()
    assert judged(cluster(), log(committed=40)) == ()
    planned = {40: DIGEST, 41: "c"}
    assert judged(cluster(), log(newest=41, committed=40, digests=planned)) == ()
    assert worst(()) is State.OK


BAD = State.BROKEN
POOR = State.DEGRADED

CASES: dict[str, tuple[ClusterEvidence, Check, State, str]] = {
    "the store": (cluster(store_fault="no space"), Check.STORE_FAULT, BAD, "no space"),
    "workers that do not listen": (
        cluster(objections={WorkerId("w2"): "its store is older"}),
        Check.STORE_REFUSED,
        BAD,
        "w2: its store is older",
    ),
    "a session that the store does not have": (at_w1(session=5), Check.STORE_OLD, BAD, "session 5"),
    "an epoch that the store does not have": (
        cluster(jobs=(job(kept=2),)),
        Check.STORE_OLD,
        POOR,
        "epoch 3",
    ),
    "a job that the controller does not know": (
        cluster(worker(W1, {UID: REPORTS[W1], JobUid("old-9"): REPORTS[W1]})),
        Check.UNKNOWN_JOB,
        BAD,
        "old-9",
    ),
    "a worker that is down": (
        cluster(worker(W2, live=False, seen_s=None)),
        Check.WORKER_SILENT,
        BAD,
        "w2 is down",
    ),
    "a worker that is suspect": (
        cluster(worker(W2, verdict=Verdict.SUSPECT)),
        Check.WORKER_SILENT,
        BAD,
        "w2 is silent",
    ),
    "a worker that is lost": (
        cluster(worker(W2, live=False, verdict=Verdict.LOST)),
        Check.WORKER_SILENT,
        BAD,
        "w2 is lost",
    ),
    "a drained worker with vnodes": (
        cluster(worker(W2, draining=True)),
        Check.WORKER_NOT_EMPTY,
        POOR,
        "rhinoctl drain w2",
    ),
    "a disk that is nearly full": (
        cluster(worker(W1, free_bytes=limits.ROOM_LOW_BYTES - 1)),
        Check.DISK_LOW,
        POOR,
        "nearly",
    ),
    "a disk that is full": (
        cluster(worker(W1, free_bytes=limits.DISK_FULL_BYTES - 1)),
        Check.DISK_LOW,
        BAD,
        "full",
    ),
    "one of several disks that is nearly full": (
        cluster(worker(W1, disks=(disk("d1"), disk("d2", free_bytes=limits.ROOM_LOW_BYTES - 1)))),
        Check.DISK_LOW,
        POOR,
        "disk d2",
    ),
    "an added disk without a vnode that is full": (
        cluster(worker(W1, disks=(disk("d1"), disk("d2", vnodes=0, free_bytes=1)))),
        Check.DISK_LOW,
        POOR,
        "rhinoctl disk retire w1:d2",
    ),
    "a disk that is lost": (
        cluster(worker(W1, disks=(disk("d1"), disk("d2", state=DiskState.LOST, free_bytes=0)))),
        Check.DISK_LOST,
        POOR,
        "`rhinoctl disk retire w1:d2 --lost`",
    ),
    "a disk that cannot be written to": (
        cluster(worker(W1, disks=(disk("d1"), disk("d2", fault=READ_ONLY)))),
        Check.DISK_LOST,
        POOR,
        "d2 cannot be written to",
    ),
    "a first disk that cannot be written to": (
        cluster(worker(W1, disks=(disk("d1", fault=READ_ONLY),))),
        Check.DISK_LOST,
        BAD,
        "`rhinoctl failover w1`",
    ),
    "an owner that cannot read its job": (
        cluster(blind(TORN)),
        Check.JOB_UNREADABLE,
        BAD,
        "0-621.seg",
    ),
    "something unreadable of no job": (
        cluster(worker(W1, unreadable={JobUid("views-9"): FOREIGN})),
        Check.JOB_UNREADABLE,
        POOR,
        "views-9",
    ),
    "a worker that is an epoch behind": (
        at_w1(epoch=replace(EPOCH, number=2)),
        Check.EPOCH_BEHIND,
        POOR,
        "w1",
    ),
    "an instance that is not there": (at_w1(instances={}), Check.INSTANCE_MISSING, BAD, "i0"),
    "an instance that is not ready": (
        at_w1(
            instances={I0: replace(REPORTS[W1].instances[I0], ready=False, fault="lock is held")}
        ),
        Check.INSTANCE_NOT_READY,
        BAD,
        "lock is held",
    ),
    "an instance that fails again and again": (
        at_w1(instances={I0: replace(REPORTS[W1].instances[I0], fault="000012.sst is torn")}),
        Check.INSTANCE_SET_BACK,
        BAD,
        "000012.sst is torn",
    ),
    "a decided batch that cannot be applied": (
        at_w1(instances={I0: replace(REPORTS[W1].instances[I0], poison="batch 0/40: too large")}),
        Check.POISON_BATCH,
        BAD,
        "batch 0/40: too large",
    ),
    "an owner without a copy": (
        with_vnode(0, covers=None, applied=None),
        Check.OWNER_NOT_WHOLE,
        BAD,
        "vnode 0",
    ),
    "a member without a copy": (
        with_vnode(1, use=VnodeUse.COPYING),
        Check.COPY_NOT_WHOLE,
        POOR,
        "vnode 1",
    ),
    "copies that are lacking": (
        cluster(jobs=(job(lacking=2),)),
        Check.COPIES_LACKING,
        POOR,
        "2 copies",
    ),
    "a replay of many batches": (
        with_vnode(1, covers=BASE),
        Check.REPLAY_LONG,
        POOR,
        "",
    ),
    "a replay that takes long": (
        cluster(jobs=(job(replay_s=9.0),)),
        Check.REPLAY_LONG,
        POOR,
        "9.0 s",
    ),
    "a log that has grown": (
        at_w1(log_bytes=limits.LOG_BYTES_AIM + 1),
        Check.LOG_HELD_BACK,
        POOR,
        "vnode 0",
    ),
    "a bad checkpoint": (
        at_w1(bad=(BadCheckpoint(vnode=Vnode(1), checkpoint="c9", fault="7.sst differs"),)),
        Check.BAD_CHECKPOINT,
        POOR,
        "7.sst differs",
    ),
    "a handover past its deadline": (
        running(Phase.MARKED),
        Check.OPERATION_LATE,
        POOR,
        "w2 to report epoch 4",
    ),
    "a failover that stands still": (
        running(Phase.ARMED, Kind.FAILOVER),
        Check.OPERATION_LATE,
        BAD,
        "op repair op-4",
    ),
    "a braked failover": (
        cluster(jobs=(job(braked="2 of 3 lost"),)),
        Check.FAILOVER_BRAKED,
        BAD,
        "2 of 3 lost",
    ),
    "a lost worker with the only copy": (
        cluster(worker(W1, live=False, verdict=Verdict.LOST), jobs=(job(epoch=ALONE),)),
        Check.WORKER_SILENT,
        BAD,
        "`rhinoctl failover w1 --force`: vnode 0 of job clicks",
    ),
}


def test_a_braked_failover_that_would_lose_state_is_not_proposed_without_force() -> None:
    lost = worker(W1, live=False, verdict=Verdict.LOST)
    found = judged(cluster(lost, jobs=(job(braked="no other whole copy", epoch=ALONE),)))
    (braked,) = [finding for finding in found if finding.check is Check.FAILOVER_BRAKED]
    assert "`rhinoctl failover w1 --force`" in braked.remedy
    assert "vnode 0 " in braked.remedy
    (safe,) = [
        finding
        for finding in judged(cluster(lost, jobs=(job(braked="2 of 3 lost"),)))
        if finding.check is Check.FAILOVER_BRAKED
    ]
    assert "--force" not in safe.remedy


@pytest.mark.parametrize("name", CASES)
def test_a_finding(name: str) -> None:
    seen, check, state, word = CASES[name]
    if name == "a replay of many batches":  # the decided batch is far from the checkpoint
        far = RecordId(Position(0, 400, 0), Attempt(2, 400))
        seen = at_w1(decided=far)
    found = judged(seen)
    assert [(finding.check, finding.state) for finding in found] == [(check, state)]
    (finding,) = found
    assert word in " ".join((finding.what, finding.evidence, finding.remedy))
    assert finding.evidence
    assert finding.cost
    assert finding.remedy


OFFSETS: dict[str, tuple[OffsetLog, Check, str]] = {
    "of another query": (log(query_id="q2"), Check.OFFSETS_OTHER_QUERY, "job bind"),
    "committed further": (log(newest=41, committed=41), Check.OFFSETS_AHEAD, "job bind"),
    "planned further": (log(newest=42, committed=40), Check.OFFSETS_AHEAD, "job bind"),
    "restored from long ago": (log(newest=30, committed=29), Check.OFFSETS_BEHIND, "job bind"),
    "lost": (log(newest=39, committed=39), Check.OFFSETS_BEHIND, "repair-offsets"),
    "torn": (log(digests={39: "a"}), Check.OFFSETS_UNREADABLE, "repair-offsets"),
    "other": (log(digests={40: "b"}), Check.OFFSETS_DIFFER, "repair-offsets"),
    "torn, and committed": (
        log(committed=40, digests={39: "a"}),
        Check.OFFSETS_UNREADABLE,
        "repair-offsets",
    ),
    "other, and committed": (
        log(committed=40, digests={40: "b"}),
        Check.OFFSETS_DIFFER,
        "job bind",
    ),
    "torn, of a batch that is not decided": (
        log(newest=41, committed=40, faults=("offsets/41: torn",)),
        Check.OFFSETS_UNREADABLE,
        "repair-offsets",
    ),
    "a torn commit": (
        log(committed=40, commit_fault="commits/40: torn"),
        Check.COMMIT_UNREADABLE,
        "repair-offsets",
    ),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_spark_s_offset_log(name: str) -> None:
    offsets, check, remedy = OFFSETS[name]
    (finding,) = judged(cluster(), offsets)
    assert (finding.check, finding.state) == (check, State.BROKEN)
    assert remedy in finding.remedy
    assert finding.fix is None, "a person must know that the query does not run"


def test_a_lost_commit_of_a_batch_that_spark_had_gone_past() -> None:
    gone_past = {W1: job_report(I0, 0, released=NOW), W2: REPORTS[W2]}
    seen = cluster(*(worker(name, {UID: report}) for name, report in gone_past.items()))
    (finding,) = judged(seen, log())
    assert (finding.check, finding.state) == (Check.COMMIT_LOST, State.BROKEN)
    assert "repair-offsets" in finding.remedy
    assert "released is 0/40" in finding.evidence
    assert judged(seen, log(newest=41, digests={40: DIGEST, 41: "c"})) == (), "Spark goes on"
    assert judged(seen, log(committed=40)) == ()


def test_torn_offsets_of_a_batch_that_is_not_decided_are_named() -> None:
    (finding,) = judged(cluster(), log(newest=41, committed=40, faults=("offsets/41: torn",)))
    assert "batch 41, which is not decided" in finding.what
    assert "offsets/41: torn" in finding.evidence
    (finding,) = judged(cluster(jobs=(job(generation=1),)), log(newest=0, committed=-1, digests={}))
    assert finding.check is Check.OFFSETS_UNREADABLE


def test_of_a_new_generation_nothing_is_decided_that_spark_could_disagree_with() -> None:
    assert (
        judged(cluster(jobs=(job(generation=1),)), log(newest=0, committed=-1, digests={0: "a"}))
        == ()
    )


def test_an_old_store_that_is_refused_is_made_anew_and_not_waited_for() -> None:
    found = judged(cluster(jobs=(job(kept=2),), objections={WorkerId("w1"): "older"}))
    assert [finding.check for finding in found] == [Check.STORE_REFUSED, Check.STORE_OLD]
    assert {"controller recover" in finding.remedy for finding in found} == {True}


def test_every_check_has_a_case() -> None:
    cases = (*CASES.values(), *OFFSETS.values())
    assert {case[1] for case in cases} == set(Check) - {Check.COMMIT_LOST}, "which has a test"


def test_what_may_be_fixed() -> None:
    """Checkpoints need a query that runs; operations are only looked at again."""
    grown = at_w1(log_bytes=limits.LOG_BYTES_AIM + 1)
    assert [(f.fix, f.target) for f in judged(grown)] == [(Fix.CHECKPOINT, JOB)]
    (finding,) = judged(replace(grown, jobs=(job(live=False),)))
    assert finding.fix is None
    assert [(f.fix, f.target) for f in judged(running(Phase.MARKED))] == [(Fix.REPAIR, "op-4")]


def test_what_is_expected_is_no_finding() -> None:
    assert judged(running(Phase.PAUSED)) == (), "a paused one has no deadline"
    assert judged(running(Phase.WARMING, deadline=1_001.0)) == ()
    assert judged(cluster(worker(W2, draining=True), jobs=(job(operation="op-4"),))) == ()
    assert judged(cluster(jobs=(job(deleted=True, braked="x"),))) == ()


def test_the_worst_comes_first() -> None:
    found = judged(cluster(worker(W2, draining=True), jobs=(job(braked="x", lacking=1),)))
    assert [f.state for f in found] == [State.BROKEN, State.DEGRADED, State.DEGRADED]
    assert worst(found) is State.BROKEN


def unreadable(seen: ClusterEvidence) -> Finding:
    (finding,) = [f for f in judged(seen) if f.check is Check.JOB_UNREADABLE]
    return finding


def test_who_cannot_read_a_job_is_given_up_if_others_have_all_of_it() -> None:
    finding = unreadable(cluster(blind(TORN)))
    assert "`rhinoctl failover w1`" in finding.remedy
    assert "--force" not in finding.remedy
    assert "batches wait for it: it owns vnode 0" in finding.cost


def test_who_alone_has_something_is_told_what_would_be_lost() -> None:
    finding = unreadable(cluster(blind(TORN), jobs=(job(epoch=ALONE),)))
    assert "`rhinoctl failover w1 --force`" in finding.remedy
    assert "EMPTY" in finding.remedy
    assert "jobs/clicks-1" in finding.remedy


def test_what_is_not_needed_goes_by_itself_only_if_it_is_known_to_be_damaged() -> None:
    torn = unreadable(cluster(blind(TORN), jobs=(without_w1(),)))
    assert torn.state is POOR
    assert "set aside" in torn.remedy
    foreign = unreadable(cluster(blind(FOREIGN), jobs=(without_w1(),)))
    assert "set aside" not in foreign.remedy
    assert "move its directory jobs/clicks-1 away" in foreign.remedy


def test_a_brake_names_who_cannot_read_the_job() -> None:
    braked = job(braked="vnode 0 has no other whole copy", epoch=ALONE)
    seen = judged(cluster(blind(TORN), jobs=(braked,)))
    (finding,) = [f for f in seen if f.check is Check.FAILOVER_BRAKED]
    assert "`rhinoctl failover w1 --force`" in finding.remedy
