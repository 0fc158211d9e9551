"""Replica groups: every vnode's copies where they shall be (Rhino's Replication Manager, 3.3).

What is wanted is planned (`rhinoctl.protocol.groups`) from what workers report, and reached by
epochs, one safe step after the other (`rhinoctl.protocol.chains`). Nothing of it is remembered: a
controller that starts anew plans the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rhinoctl import limits
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.registry import JobDocument, Registry
from rhinoctl.ids import JobUid, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import views
from rhinoctl.protocol.chains import next_epoch
from rhinoctl.protocol.epochs import Epoch, Role
from rhinoctl.protocol.groups import GroupPlan, Host, plan_groups
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.pacing import ReplayCost, batches_between
from rhinoctl.protocol.placement import Capacity
from rhinoctl.protocol.ports import Clock


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what it was made from, and when."""

    key: tuple[object, ...]
    plan: GroupPlan
    at: float


@dataclass(slots=True)
class Groups:
    """The care for the chains of every job. `usable` says which workers may hold copies."""

    registry: Registry
    fleet: Fleet
    clock: Clock
    usable: Callable[[], frozenset[WorkerId]]
    _plans: dict[JobUid, Planned] = field(default_factory=dict)

    def hosts(self, uid: JobUid) -> dict[WorkerId, Host]:
        """What each usable worker can hold of a job: what it has of it, and its free room."""
        reports = self.fleet.reports(uid)
        found = {}
        for name in sorted(self.usable_for(uid)):
            seen = self.fleet.workers[name]
            if seen.report is None:
                continue
            job = reports.get(name)
            here = sum(v.state_bytes for v in job.vnodes.values()) if job is not None else 0
            room = here + room_for_copies(seen.report)
            known = self.fleet.capacities.get(name, Capacity())
            found[name] = Host(disk_bytes=room, rack=known.rack, bandwidth=known.bandwidth)
        return found

    def usable_for(self, uid: JobUid) -> frozenset[WorkerId]:
        """The workers that may hold copies of a job: not those that cannot read what they have."""
        return self.usable() - self.fleet.unreadable(uid).keys()

    def sizes(self, uid: JobUid) -> dict[Vnode, int]:
        """Bytes of state by vnode, as far as they are reported."""
        found: dict[Vnode, int] = {}
        for report in self.fleet.reports(uid).values():
            for vnode, copy in report.vnodes.items():
                found[vnode] = max(found.get(vnode, 0), copy.state_bytes)
        return found

    def plan(self, document: JobDocument, epoch: Epoch) -> GroupPlan:
        """The groups of a job as they shall be; made anew when something has changed."""
        uid, replication = document.spec.uid, document.spec.replication
        key = (epoch, replication, self.usable_for(uid))
        now = self.clock.monotonic()
        known = self._plans.get(uid)
        if known is None or known.key != key or now - known.at > limits.REPLAN_S:
            plan = plan_groups(epoch, replication, self.hosts(uid), self.sizes(uid))
            known = self._plans[uid] = Planned(key, plan, now)
        return known.plan

    def next(self, document: JobDocument, epoch: Epoch) -> Epoch | None:
        """The next epoch towards the plan, None if nothing can be done now."""
        uid = document.spec.uid
        whole = {
            worker: frozenset(v for v, c in report.vnodes.items() if c.use in _WHOLE)
            for worker, report in self.fleet.reports(uid).items()
        }
        return next_epoch(
            epoch,
            self.plan(document, epoch),
            whole,
            self.fleet.addresses(),
            joining_at_once=limits.JOINING_AT_ONCE,
        )

    def wants(self, document: JobDocument, epoch: Epoch, worker: WorkerId) -> bool:
        """Whether a worker is to be a member of some vnode's chain."""
        planned = self.plan(document, epoch).members.values()
        return any(worker in members for members in planned)

    def holds(self, epoch: Epoch, worker: WorkerId) -> tuple[m.Hold, ...]:
        """The copies that a worker gathers as a joining member."""
        return tuple(
            m.Hold(vnode=vnode, sources=sources_of(epoch, vnode, worker))
            for vnode in epoch.held_by(worker)
            if epoch.role_of(worker, vnode) is Role.JOINING
        )

    def lacking(self, document: JobDocument, epoch: Epoch) -> int:
        """How many whole copies besides the owners' are missing to what the job wishes for."""
        usable, missing = self.usable_for(document.spec.uid), 0
        for route in epoch.routes:
            full = [m for m in route.members if m.role is Role.FULL and m.worker in usable]
            missing += max(0, document.spec.replication - len(full))
        return missing

    def behind(self, uid: JobUid) -> dict[tuple[WorkerId, Vnode], int]:
        """See `batches_behind`: as the live workers tell it."""
        return batches_behind(self.fleet.reports(uid))

    # --- for people ------------------------------------------------------------------------------

    def view(
        self, document: JobDocument, epoch: Epoch, request: views.GroupsRequest
    ) -> views.GroupsView:
        """The chains as they are and as planned."""
        uid = document.spec.uid
        replication = document.spec.replication
        plan = self.plan(document, epoch)
        if request.replication is not None and request.replication != replication:
            replication = request.replication
            plan = plan_groups(epoch, replication, self.hosts(uid), self.sizes(uid))
        sizes, cost, behind = self.sizes(uid), self.replay_cost(uid), self.behind(uid)
        joins = leaves = 0
        listed = []
        for v in epoch.vnodes():
            vnode, route = Vnode(v), epoch.routes[v]
            present = {member.worker for member in route.members}
            planned = plan.members.get(vnode, ())
            joins += len(set(planned) - present)
            leaves += len(present - set(planned))
            listed.append(
                views.GroupView(
                    vnode=vnode,
                    owner=route.owner,
                    worker=epoch.owner_worker(vnode),
                    members=tuple(
                        self._member(uid, vnode, x.worker, x.role, cost, behind)
                        for x in route.members
                    ),
                    planned=planned,
                    state_bytes=sizes.get(vnode, 0),
                )
            )
        return views.GroupsView(
            job=document.spec.name,
            replication=replication,
            groups=tuple(listed),
            joins=joins,
            leaves=leaves,
            lacking=sum(plan.lacking.values()),
            reasons=plan.reasons,
            unreadable={w: one.fault for w, one in self.fleet.unreadable(uid).items()},
        )

    def _member(
        self,
        uid: JobUid,
        vnode: Vnode,
        worker: WorkerId,
        role: Role,
        cost: ReplayCost | None,
        behind: Mapping[tuple[WorkerId, Vnode], int],
    ) -> views.MemberView:
        report = self.fleet.reports(uid).get(worker)
        copy = report.vnodes.get(vnode) if report is not None else None
        rows = copy.replay_rows if copy is not None else 0
        batches = None if copy is None else behind.get((worker, vnode), 0)
        seconds = None
        if batches is not None and cost is not None:
            seconds = cost.predict_s(batches, rows)
        return views.MemberView(
            worker=worker,
            role=role,
            whole=copy is not None and copy.use in _WHOLE,
            lag_batches=batches,
            lag_bytes=copy.replay_bytes if copy is not None else None,
            lag_s=seconds,
        )

    def replay_cost(self, uid: JobUid) -> ReplayCost | None:
        """How long it takes to apply batches and rows, as the slowest instances say."""
        known = [
            one.replay_cost
            for report in self.fleet.reports(uid).values()
            for one in report.instances.values()
            if one.replay_cost is not None
        ]
        if not known:
            return None
        return ReplayCost(max(c.batch_s for c in known), max(c.row_s for c in known))

    def losses(self, document: JobDocument, epoch: Epoch) -> tuple[views.LossView, ...]:
        """What the loss of each worker would mean now."""
        uid = document.spec.uid
        reports, behind = self.fleet.reports(uid), self.behind(uid)
        cost = self.replay_cost(uid)
        found = []
        for worker in sorted(epoch.workers):
            owned = [Vnode(v) for v in epoch.vnodes() if epoch.owner_worker(Vnode(v)) == worker]
            batches, rows = dict.fromkeys(reports, 0), dict.fromkeys(reports, 0)
            stranded = 0
            for vnode in owned:
                heirs = [w for w in epoch.full_holders(vnode) if w != worker and w in reports]
                if not heirs:
                    stranded += 1
                    continue
                best = min(heirs, key=lambda w: (behind.get((w, vnode), 0), w))
                batches[best] = max(batches[best], behind.get((best, vnode), 0))
                copy = reports[best].vnodes.get(vnode)
                rows[best] += copy.replay_rows if copy is not None else 0
            seconds = None
            if cost is not None and not stranded:
                replays = [cost.predict_s(batches[heir], rows[heir]) for heir in reports]
                seconds = len(owned) * limits.OPEN_VNODE_S + max(replays, default=0.0)
            found.append(
                views.LossView(
                    worker=worker,
                    vnodes=len(owned),
                    stranded=stranded,
                    batches=max(batches.values(), default=0),
                    seconds=seconds,
                )
            )
        return tuple(found)


_WHOLE = (VnodeUse.OWNED, VnodeUse.HELD, VnodeUse.READY, VnodeUse.FOLLOWING)


def batches_behind(reports: Mapping[WorkerId, m.JobReport]) -> dict[tuple[WorkerId, Vnode], int]:
    """Batches that an heir would replay, by worker and vnode: whole batches of the log. A copy that
    its owner cannot open is left out: who has it inherits only for want of others."""
    newest = max((r.decided.position.time for r in reports.values() if r.decided), default=None)
    if newest is None:
        return {}
    return {
        (worker, vnode): batches_between(copy.covers, newest)
        for worker, report in reports.items()
        for vnode, copy in report.vnodes.items()
        if copy.covers is not None and not copy.bereft
    }


def room_for_copies(report: m.WorkerReport) -> int:
    """Bytes of copies that a worker's disks may still take; the rest is for log and compaction."""
    return int(report.free_bytes * limits.DISK_SHARE)


def room_for_one(report: m.WorkerReport) -> int:
    """Bytes of the largest copy that a worker may still take: a vnode is on one disk."""
    single = [disk.free_bytes for disk in report.disks if disk.counts]
    return int(max(single, default=report.free_bytes) * limits.DISK_SHARE)


def sources_of(epoch: Epoch, vnode: Vnode, worker: WorkerId) -> dict[WorkerId, str]:
    """From where a worker may copy a vnode: the other full holders."""
    return {w: epoch.workers[w] for w in epoch.full_holders(vnode) if w != worker}
