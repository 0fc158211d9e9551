"""The care for a worker's disks: one that is retired is emptied, one that is gone, or that refuses
every write for `limits.DISK_REFUSES_S`, is noticed.

Invariants:

1. A vnode leaves a disk only when all its checkpoints are whole on another one, hashed there.
2. While the last of them are copied nothing new comes to them, so that none is forgotten.
3. What was on a disk that is gone counts as lost for this worker, and no more than that: the log is
   not there, and says from where copies go on.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rhino_agent.copies import Copies
from rhino_agent.job import Job
from rhino_agent.ports import Ports, event
from rhino_agent.replication import Replication
from rhino_agent.scrub import Scrub, told
from rhino_agent.throttle import Throttle
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, DiskRefused, RhinoError
from rhinoctl.ids import DiskId, JobUid, Vnode
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.disks import FIRST, DiskAction, DiskReport, DiskRequest, DiskState, ScrubView
from rhinoctl.protocol.ports import Envelope
from rhinoctl.state.checkpoints import VnodeCheckpoints
from rhinoctl.state.disks import Disks
from rhinoctl.state.hashing import Steps
from rhinoctl.state.manifests import Manifest
from rhinoctl.state.primitives import backup_state
from rhinoctl.state.spread import MOVING, Member, Place


class Desk(Protocol):
    """What a job has on this worker (`rhino_agent.agent.Desk`)."""

    @property
    def job(self) -> Job: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def copies(self) -> Copies: ...
    @property
    def replication(self) -> Replication: ...
    @property
    def scrub(self) -> Scrub: ...


@dataclass(slots=True)
class Move:
    """A vnode that is leaving its disk."""

    vnode: Vnode
    desk: Desk
    steps: Steps[None]


class Stuck(NamedTuple):
    """A vnode that could not leave its disk: why, and when it is tried again."""

    why: str
    again_at: float


class Refusing(NamedTuple):
    """A disk that cannot be written to: why, and since when."""

    why: str
    since: float


class DiskCare:
    """The disks of a worker, and the jobs whose vnodes are on them."""

    def __init__(self, ports: Ports, disks: Disks, desks: Mapping[JobUid, Desk]) -> None:
        self._ports = ports
        self._disks = disks
        self._desks = desks
        self._throttle = Throttle(ports.clock, limits.RETIRE_BYTES_S)
        self._move: Move | None = None
        self._look_at = ports.clock.monotonic() + limits.DISK_LOOK_S
        self._refusing: dict[DiskId, Refusing] = {}
        self._stuck: dict[Place, Stuck] = {}
        self._scrubs: Counter[DiskId] = Counter()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to copy now."""
        return self._move is not None and self._throttle.may()

    def step(self) -> None:
        """Look at the disks every now and then, and copy a slice of what leaves one."""
        now = self._ports.clock.monotonic()
        look = now >= self._look_at
        if look:
            self._find_refusing(now)
        if len(self._disks.spread.members) == 1:
            return
        if look:
            self._find_lost()
            for member in self._disks.find_empty():
                event("disk-empty", disk=member.name, path=member.path)
        if self._move is None:
            self._begin(now)
        if self._move is not None and self._move.desk not in self._desks.values():
            self._drop(self._move)
        if self._move is not None and self._throttle.may():
            self._go_on(self._move)

    # --- a disk that is gone ---------------------------------------------------------------------

    def _find_refusing(self, now: float) -> None:
        """See which disks refuse to be written to, and since when; those are looked at more often,
        so that what lasts is told from what is over."""
        found = self._disks.find_refusing()
        for name, why in found.items():
            if name not in self._refusing:
                event("disk-refuses", disk=name, fault=why)
        for name in self._refusing.keys() - found.keys():
            event("disk-refuses-no-more", disk=name)
        since = {name: refusing.since for name, refusing in self._refusing.items()}
        self._refusing = {n: Refusing(why, since.get(n, now)) for n, why in found.items()}
        self._look_at = now + (limits.DISK_DOUBT_S if found else limits.DISK_LOOK_S)

    def _lasting(self) -> dict[DiskId, str]:
        """The disks that have refused for too long, and why."""
        since = self._ports.clock.monotonic() - limits.DISK_REFUSES_S
        return {name: each.why for name, each in self._refusing.items() if each.since <= since}

    def no_log(self) -> str:
        """Why nothing can be written to the log, for so long that this worker takes part in nothing
        until it can; empty if it can."""
        why = self._lasting().get(FIRST, "")
        return why and f"its log is on disk {FIRST}: {why}"

    def _find_lost(self) -> None:
        lasting = self._lasting()
        lost = self._disks.find_lost(lasting)
        for member, places in lost:
            self._refusing.pop(member.name, None)
            event("disk-lost", disk=member.name, path=member.path, fault=member.fault)
            if self._move is not None:
                self._drop(self._move)
            for place in places:
                desk = self._desks.get(JobUid(place.job))
                if desk is not None and place.vnode.isdigit():
                    self._relocated(desk, Vnode(int(place.vnode)))

        if lost:
            self._forgive()

    def _forgive(self) -> None:
        """What has come to nothing did so for a disk that is not used any more: nobody is told of
        it as if it went on."""
        for desk in self._desks.values():
            for instance in desk.job.instances.values():
                instance.setbacks = 0

    def _relocated(self, desk: Desk, vnode: Vnode) -> None:
        desk.copies.forget(vnode)
        desk.replication.forget(vnode)
        desk.upkeep.relocated(vnode)

    # --- a disk that is retired ------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Take the next vnode that is to leave its disk, and that nobody works on. One that could
        not leave waits for a while, and holds up no other."""
        for member in self._disks.spread.members:
            if member.state is not DiskState.RETIRING or member.disk is None:
                continue
            for place in self._disks.spread.places(member):
                desk = self._desks.get(JobUid(place.job))
                if desk is None or not place.vnode.isdigit():
                    continue
                if place in self._stuck and now < self._stuck[place].again_at:
                    continue
                vnode = Vnode(int(place.vnode))
                if not desk.upkeep.is_busy(vnode):
                    steps = self._steps(desk, vnode, place)
                    self._move = Move(vnode, desk, steps)
                    return

    def _go_on(self, move: Move) -> None:
        source = self._disks.spread.member_of(_place(move))
        try:
            self._throttle.took(next(move.steps))
        except StopIteration:
            self._drop(move)
            self._stuck.pop(_place(move), None)
            event("vnode-moved", job=move.desk.job.spec.uid, vnode=move.vnode, off=source.name)
        except (RhinoError, OSError) as fault:
            self._drop(move)
            again_at = self._ports.clock.monotonic() + limits.RETIRE_PAUSE_S
            self._stuck[_place(move)] = Stuck(
                f"vnode {move.vnode} does not leave it: {fault}", again_at
            )
            event("vnode-not-moved", vnode=move.vnode, disk=source.name, fault=fault)
            if isinstance(fault, CorruptFile):
                for manifest in move.desk.upkeep.holdings.of(move.vnode).complete():
                    move.desk.upkeep.suspect(move.vnode, manifest.checkpoint_id)
            else:
                move.desk.upkeep.suspect_gone(move.vnode)

    def _drop(self, move: Move) -> None:
        move.steps.close()
        move.desk.upkeep.let_go(move.vnode)
        move.desk.upkeep.holdings.leases.release(_holder(move.vnode))
        self._move = None

    def _steps(self, desk: Desk, vnode: Vnode, place: Place) -> Steps[None]:
        """Copy while the vnode is in use, then, with nothing new coming, what came meanwhile."""
        upkeep, to = desk.upkeep, self._disks.spread.roomiest()
        assert to.disk is not None
        staged = f"{MOVING}/{place.job}-{place.vnode}"
        to.disk.remove(staged)
        target = VnodeCheckpoints(to.disk, staged, upkeep.holdings.identity(vnode))
        yield from self._copy(desk, vnode, target)
        upkeep.hold(vnode)
        desk.copies.forget(vnode)
        desk.replication.forget(vnode)
        while upkeep.works_on(vnode):
            yield 0
        yield from self._copy(desk, vnode, target)
        here = {manifest.checkpoint_id for manifest in upkeep.holdings.of(vnode).complete()}
        for manifest in target.complete():
            if manifest.checkpoint_id not in here:  # bad, or forfeited, since it was copied
                to.disk.remove(f"{staged}/{manifest.checkpoint_id}")
        self._disks.moved(place, staged, to)
        upkeep.relocated(vnode)

    def _copy(self, desk: Desk, vnode: Vnode, target: VnodeCheckpoints) -> Steps[None]:
        holdings = desk.upkeep.holdings
        source = holdings.of(vnode)
        chosen: list[Manifest] = list(reversed(source.complete()))
        for manifest in chosen:
            name = manifest.checkpoint_id
            holdings.leases.take(vnode, name, _holder(vnode), until=float("inf"))
        for manifest in chosen:
            if any(each.checkpoint_id == manifest.checkpoint_id for each in source.complete()):
                yield from backup_state(manifest, source, target)

    # --- what is asked ---------------------------------------------------------------------------

    def handle(self, envelope: Envelope) -> None:
        """Do as a person asks, or say why not."""
        message = envelope.message
        assert isinstance(message, m.ChangeDisks)
        header = self._ports.header()
        try:
            names = self._do(message.request)
        except RhinoError as fault:
            answer = m.DisksChanged(
                header=header, code=fault.code, message=fault.message, remedy=fault.remedy
            )
        else:
            told_of = tuple(report for report in self.reports() if report.disk in names)
            answer = m.DisksChanged(header=header, disks=told_of)
        self._ports.wire.reply(envelope, answer)

    def _do(self, request: DiskRequest) -> list[DiskId]:
        event("disks", action=request.action.value, disk=request.disk, path=request.path)
        if request.action is DiskAction.ADD:
            return [self._disks.add(request.path).name]
        if request.action is DiskAction.RETIRE:
            sizes = {report.disk: report.bytes for report in self.reports()}
            return [self._disks.retire(request.disk, sizes.get(request.disk, 0)).name]
        if request.action is DiskAction.GIVE_UP:
            return [self._disks.give_up(request.disk).name]
        members = self._disks.spread.members
        if request.disk:
            members = [self._disks.member(request.disk)]
        for member in members:
            self._scrub(member, alone=bool(request.disk))
        return [member.name for member in members]

    def _scrub(self, member: Member, *, alone: bool) -> None:
        """Read all that is on a disk, unless somebody waits for that already."""
        if member.disk is None:
            if alone:
                raise DiskRefused(
                    f"disk {member.name} is {member.state.value}: there is nothing to read",
                    remedy="see `rhinoctl disk list`",
                )
            return
        if self._scrubs[member.name] and not self._scrub_view(member.name).over:
            return
        self._scrubs[member.name] += 1
        for desk in self._desks.values():
            desk.scrub.ask(member.name, self._vnodes(desk).get(member.name, []))

    # --- what is told ----------------------------------------------------------------------------

    def reports(self) -> tuple[DiskReport, ...]:
        """Every disk, as it is."""
        vnodes: Counter[DiskId] = Counter()
        size: Counter[DiskId] = Counter()
        for desk in self._desks.values():
            for name, mine in self._vnodes(desk).items():
                vnodes[name] += len(mine)
                newest = (desk.upkeep.holdings.newest(vnode) for vnode in mine)
                size[name] += sum(each.total_bytes for each in newest if each is not None)
        volumes: dict[object, DiskId] = {}
        return tuple(
            DiskReport(
                disk=member.name,
                path=member.path,
                state=member.state,
                free_bytes=member.room(),
                vnodes=vnodes[member.name],
                bytes=size[member.name],
                shares=volumes.setdefault(_volume(member), member.name),
                fault=member.fault or self._why_refusing(member) or self._why_stuck(member),
                scrub=self._scrub_view(member.name),
            )
            for member in self._disks.spread.members
        )

    def _why_refusing(self, member: Member) -> str:
        refusing = self._refusing.get(member.name)
        return "" if refusing is None else refusing.why

    def _why_stuck(self, member: Member) -> str:
        """What keeps the first vnode that could not leave a disk; empty if there is none."""
        if member.state is not DiskState.RETIRING or not self._stuck:
            return ""
        there = (self._stuck.get(place) for place in self._disks.spread.places(member))
        return next((stuck.why for stuck in there if stuck is not None), "")

    def _vnodes(self, desk: Desk) -> dict[DiskId, list[Vnode]]:
        found: dict[DiskId, list[Vnode]] = {}
        for vnode in desk.upkeep.holdings.vnodes():
            member = self._disks.spread.member_of(Place(desk.job.spec.uid, str(vnode)))
            found.setdefault(member.name, []).append(vnode)
        return found

    def _scrub_view(self, disk: DiskId) -> ScrubView:
        asked = (desk.scrub.asked.get(disk) for desk in self._desks.values())
        return told(self._scrubs[disk], [one for one in asked if one is not None])


def _place(move: Move) -> Place:
    return Place(move.desk.job.spec.uid, str(move.vnode))


def _holder(vnode: Vnode) -> str:
    return f"move of vnode {vnode} to another disk"


def _volume(member: Member) -> object:
    """What tells the file systems of two disks apart."""
    try:
        return member.name if member.disk is None else member.disk.volume()
    except OSError:
        return member.name
