"""Replica groups on random clusters, and the epochs that lead to them (Rhino, section 4.2.2).

The checks know the rules, and nothing of how the planner meets them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rhinoctl.ids import InstanceId, JobName, Vnode, WorkerId
from rhinoctl.ops.groups import is_settled
from rhinoctl.protocol import views
from rhinoctl.protocol.chains import next_epoch
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, successor_fault
from rhinoctl.protocol.groups import GroupPlan, Host, plan_groups

WORKERS = [WorkerId(f"w{n}") for n in range(7)]
steady = settings(deadline=None)
ADDRESSES = {worker: f"{worker}.sock" for worker in WORKERS}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job on a cluster, and what is asked for."""

    epoch: Epoch
    replication: int
    hosts: Mapping[WorkerId, Host]
    sizes: Mapping[Vnode, int]

    def plan(self) -> GroupPlan:
        return plan_groups(self.epoch, self.replication, self.hosts, self.sizes)

    def others(self, vnode: Vnode) -> list[WorkerId]:
        """The hosts that may be members."""
        return [worker for worker in self.hosts if worker != self.epoch.owner_worker(vnode)]

    def used(self, plan: GroupPlan) -> dict[WorkerId, list[Vnode]]:
        """The vnodes that each host holds, primary copies first."""
        held: dict[WorkerId, list[Vnode]] = {worker: [] for worker in self.hosts}
        for v in self.epoch.vnodes():
            held.setdefault(self.epoch.owner_worker(Vnode(v)), []).append(Vnode(v))
        for vnode, members in plan.members.items():
            for worker in members:
                held[worker].append(vnode)
        return held

    def fits(self, worker: WorkerId, vnodes: list[Vnode]) -> bool:
        host = self.hosts[worker]
        return (host.slots is None or len(vnodes) <= host.slots) and (
            host.disk_bytes is None or sum(self.sizes[v] for v in vnodes) <= host.disk_bytes
        )

    def racks(self, vnode: Vnode, members: tuple[WorkerId, ...]) -> set[str | None]:
        """The racks of a chain; that of a worker that is no host is not known."""
        chain = (self.epoch.owner_worker(vnode), *members)
        return {self.hosts[w].rack if w in self.hosts else None for w in chain}


def optional(values: st.SearchStrategy, limited: bool) -> st.SearchStrategy:
    return st.one_of(st.none(), values) if limited else st.none()


@st.composite
def cases(draw: st.DrawFn, *, limited: bool = True, full: bool = False) -> Case:
    """Any cluster: some workers are no hosts, some chains are too long, some hosts too full."""
    workers = draw(st.lists(st.sampled_from(WORKERS), min_size=1, max_size=7, unique=True))
    placed = {
        InstanceId(f"i{n}"): draw(st.sampled_from(workers)) for n in range(draw(st.integers(1, 4)))
    }
    routes = []
    for _ in range(draw(st.integers(1, 8))):
        owner = draw(st.sampled_from(sorted(placed)))
        others = [worker for worker in workers if worker != placed[owner]]
        members = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        roles = st.just(Role.FULL) if full else st.sampled_from(Role)
        routes.append(
            Route(owner=owner, members=tuple(Member(worker=w, role=draw(roles)) for w in members))
        )
    host = st.builds(
        Host,
        disk_bytes=optional(st.integers(0, 40), limited),
        slots=optional(st.integers(0, 8), limited),
        bandwidth=st.one_of(st.none(), st.sampled_from((0.5, 1.0, 2.0))),
        rack=st.one_of(st.none(), st.sampled_from("abc")),
    )
    return Case(
        epoch=Epoch(
            number=4,
            workers={worker: ADDRESSES[worker] for worker in workers},
            instances=placed,
            routes=tuple(routes),
        ),
        replication=draw(st.integers(0, 3)),
        hosts={worker: draw(host) for worker in WORKERS if draw(st.integers(0, 5))},
        sizes={Vnode(v): draw(st.integers(0, 9)) for v in range(len(routes))},
    )


@dataclass(kw_only=True)
class Walk:
    """A job whose proposals are taken up at once, and whose copies are whole an epoch later."""

    case: Case
    at_once: int = 2

    def whole(self) -> dict[WorkerId, frozenset[Vnode]]:
        epoch = self.case.epoch
        return {worker: frozenset(epoch.held_by(worker)) for worker in epoch.workers}

    def next(self, plan: GroupPlan) -> bool:
        before = self.case.epoch
        after = next_epoch(before, plan, self.whole(), ADDRESSES, joining_at_once=self.at_once)
        if after is None:
            return False
        assert successor_fault(before, after) is None
        assert after.instances == before.instances
        assert [r.owner for r in after.routes] == [r.owner for r in before.routes]
        assert after.routes != before.routes, "an epoch for nothing"
        for v in before.vnodes():
            old, new = full_members(before, v), full_members(after, v)
            assert len(new) >= min(len(old), self.case.replication)
            assert len(new) >= len(old) or not joining(after, v) & set(plan.members[Vnode(v)])
        for worker, count in Counter(w for v in after.vnodes() for w in joining(after, v)).items():
            there = sum(worker in joining(before, v) for v in before.vnodes())
            assert count <= max(self.at_once, there)
        self.case = replace(self.case, epoch=after)
        return True

    def to_end(self, plan: GroupPlan) -> Epoch:
        bound = 3 + 3 * sum(map(len, plan.members.values()))
        for _ in range(bound):
            if not self.next(plan):
                return self.case.epoch
        raise AssertionError(f"not there after {bound} epochs")


def full_members(epoch: Epoch, v: int) -> list[WorkerId]:
    return [m.worker for m in epoch.routes[v].members if m.role is Role.FULL]


def joining(epoch: Epoch, v: int) -> set[WorkerId]:
    return {m.worker for m in epoch.routes[v].members if m.role is Role.JOINING}


# --- the plan ------------------------------------------------------------------------------------


@steady
@given(cases())
def test_hard_rules_hold(case: Case) -> None:
    plan = case.plan()
    assert set(plan.members) == set(case.epoch.vnodes())
    for vnode, members in plan.members.items():
        assert len(set(members)) == len(members) <= case.replication
        assert set(members) <= set(case.others(vnode))
        assert plan.lacking.get(vnode, 0) == case.replication - len(members)
    held = case.used(plan)
    for worker in {w for members in plan.members.values() for w in members}:
        assert case.fits(worker, held[worker])
    assert 0 not in plan.lacking.values()
    assert bool(plan.lacking) == bool(plan.reasons)


@steady
@given(cases())
def test_nothing_lacks_for_which_there_is_room_or_room_can_be_made(case: Case) -> None:
    """No host has room, nor gets it when one of its copies goes to another that has."""
    plan = case.plan()
    held = case.used(plan)
    for vnode in plan.lacking:
        for worker in set(case.others(vnode)) - set(plan.members[vnode]):
            assert not case.fits(worker, [*held[worker], vnode])
            for other, members in plan.members.items():
                rest = [v for v in held[worker] if v != other]
                if worker in members and case.fits(worker, [*rest, vnode]):
                    for target in set(case.others(other)) - set(members):
                        assert not case.fits(target, [*held[target], other])


@steady
@given(cases())
def test_racks_are_apart_where_a_host_in_another_rack_has_room(case: Case) -> None:
    plan = case.plan()
    held = case.used(plan)
    for vnode, members in plan.members.items():
        racks = case.racks(vnode, members)
        if members and len(racks) <= len(members):
            for worker in case.others(vnode):
                if case.hosts[worker].rack not in racks:
                    assert not case.fits(worker, [*held[worker], vnode])


@steady
@given(cases(limited=False))
def test_as_many_racks_as_there_can_be(case: Case) -> None:
    for vnode, members in case.plan().members.items():
        others = tuple(case.others(vnode))
        assert len(members) == min(case.replication, len(others))
        most = min(len(members) + 1, len(case.racks(vnode, others)))
        assert len(case.racks(vnode, members)) == (most if members else 1)


@steady
@given(cases(limited=False))
def test_members_stay_full_ones_first(case: Case) -> None:
    """Where racks do not matter, and there is room for everything."""
    hosts = {worker: replace(host, rack=None) for worker, host in case.hosts.items()}
    case = replace(case, hosts=hosts)
    for vnode, members in case.plan().members.items():
        there = [m for m in case.epoch.routes[vnode].members if m.worker in hosts]
        full = {m.worker for m in there if m.role is Role.FULL}
        assert len(full & set(members)) == min(len(full), case.replication)
        stayed = {m.worker for m in there} & set(members)
        assert len(stayed) == min(len(there), case.replication)


@steady
@given(cases(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_registration(case: Case, chance: Random) -> None:
    """Scenario T1."""

    def shuffled(mapping: Mapping) -> dict:
        items = list(mapping.items())
        chance.shuffle(items)
        return dict(items)

    epoch = replace(
        case.epoch,
        workers=shuffled(case.epoch.workers),
        instances=shuffled(case.epoch.instances),
    )
    other = Case(
        epoch=epoch,
        replication=case.replication,
        hosts=shuffled(case.hosts),
        sizes=shuffled(case.sizes),
    )
    assert other.plan() == case.plan()


@steady
@given(cases(limited=False), st.data())
def test_a_worker_that_goes_moves_only_what_it_held(case: Case, data: st.DataObject) -> None:
    settled = replace(case, epoch=Walk(case=case).to_end(case.plan()))
    assume(settled.hosts)
    gone = data.draw(st.sampled_from(sorted(settled.hosts)))
    less = {worker: host for worker, host in settled.hosts.items() if worker != gone}
    before, after = settled.plan(), replace(settled, hosts=less).plan()
    for vnode, members in before.members.items():
        rest = [worker for worker in members if worker != gone]
        if settled.epoch.owner_worker(vnode) != gone:  # else its rack is not known any more
            assert list(after.members[vnode][: len(rest)]) == rest
            assert rest != list(members) or after.members[vnode] == members


@steady
@given(cases(), st.integers(1, 3))
def test_more_than_there_are_workers_is_said(case: Case, more: int) -> None:
    case = replace(case, replication=len(case.hosts) + more)
    plan = case.plan()
    assert set(plan.lacking) == set(case.epoch.vnodes())
    assert any(f"replication {case.replication} needs" in reason for reason in plan.reasons)


# --- the way -------------------------------------------------------------------------------------


@steady
@given(cases(), st.integers(1, 3))
def test_epochs_lead_to_the_plan(case: Case, at_once: int) -> None:
    """`Walk.next` checks each on the way. Where members lack, full ones stay in their place."""
    plan = case.plan()
    end = Walk(case=case, at_once=at_once).to_end(plan)
    for vnode, members in plan.members.items():
        chain = tuple(m.worker for m in end.routes[vnode].members)
        assert joining(end, vnode) == set()
        assert tuple(worker for worker in chain if worker in members) == members
        there = [w for w in full_members(case.epoch, vnode) if w not in members]
        assert len(chain) == len(members) + min(plan.lacking.get(vnode, 0), len(there))


@steady
@given(cases())
def test_a_second_plan_changes_nothing(case: Case) -> None:
    plan = case.plan()
    walk = Walk(case=case)
    walk.to_end(plan)
    again = walk.case.plan()
    assert {v: set(members) for v, members in again.members.items()} == {
        v: set(members) for v, members in plan.members.items()
    }
    assert again.lacking == plan.lacking
    assert not walk.next(again)


@steady
@given(cases(), st.integers(1, 3))
def test_a_plan_made_anew_before_each_epoch_settles_too(case: Case, at_once: int) -> None:
    """As the controller does it, which has no memory of progress."""
    walk = Walk(case=case, at_once=at_once)
    bound = 6 + 6 * len(case.epoch.routes) * (case.replication + 1)
    for _ in range(bound):
        if not walk.next(walk.case.plan()):
            break
    else:
        raise AssertionError(f"not settled after {bound} epochs")
    end = walk.case.epoch
    for vnode, members in walk.case.plan().members.items():
        assert set(members) <= set(end.full_holders(vnode))


@steady
@given(cases(), cases())
def test_any_plan_may_be_followed_from_any_epoch(case: Case, other: Case) -> None:
    """A plan may be older than the epoch: what is proposed is legal, and no redundancy is lost."""
    vnodes = range(min(len(case.epoch.routes), len(other.epoch.routes)))
    plan = replace(other, replication=case.replication).plan()
    kept = {Vnode(v): plan.members[Vnode(v)] for v in vnodes}
    rest = {Vnode(v): () for v in case.epoch.vnodes() if Vnode(v) not in kept}
    lacking = {**plan.lacking, **dict.fromkeys(rest, case.replication)}
    lacking = {v: lacking[v] for v in sorted(lacking) if v in case.epoch.vnodes()}
    Walk(case=case).to_end(GroupPlan(members={**kept, **rest}, lacking=lacking, reasons=()))


# --- as people see it ----------------------------------------------------------------------------


def shown(case: Case, plan: GroupPlan) -> views.GroupsView:
    """What the controller shows of a job, when every copy is whole."""
    return views.GroupsView(
        job=JobName("clicks"),
        replication=case.replication,
        groups=tuple(
            views.GroupView(
                vnode=Vnode(v),
                owner=route.owner,
                worker=case.epoch.owner_worker(Vnode(v)),
                members=tuple(
                    views.MemberView(
                        worker=member.worker,
                        role=member.role,
                        whole=True,
                        lag_batches=0,
                        lag_bytes=0,
                        lag_s=None,
                    )
                    for member in route.members
                ),
                planned=plan.members[Vnode(v)],
                state_bytes=0,
            )
            for v, route in enumerate(case.epoch.routes)
        ),
        joins=0,
        leaves=0,
        lacking=sum(plan.lacking.values()),
        reasons=plan.reasons,
    )


@steady
@given(case=cases())
def test_people_are_told_to_wait_exactly_as_long_as_there_is_a_next_epoch(case: Case) -> None:
    """`groups apply` and `drain` end when the chains change no more, and not before."""
    plan = case.plan()
    every = frozenset(case.epoch.vnodes())
    whole = dict.fromkeys(case.epoch.workers, every)
    after = next_epoch(case.epoch, plan, whole, ADDRESSES, joining_at_once=100)
    assert is_settled(shown(case, plan)) == (after is None)
