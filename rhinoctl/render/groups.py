"""Replica groups, checkpoints by hand and drains, as tables and in a line."""

from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rhinoctl.ops.checkpoint import is_done, missing_words
from rhinoctl.ops.groups import (
    Change,
    change_of,
    full_copies,
    is_good,
    is_settled,
    wanted_copies,
)
from rhinoctl.ops.vnodes import format_vnodes
from rhinoctl.ops.workers import Drain, error_of_drain, held_words
from rhinoctl.protocol.epochs import Role
from rhinoctl.protocol.views import (
    CheckpointView,
    GroupsView,
    GroupView,
    MemberView,
    OperationList,
)
from rhinoctl.render.tables import columns, facts, operations_table, plans_table, spaced
from rhinoctl.render.units import counted, seconds, size

LAG = "Lag is what an owner's heir would replay of its log"


# --- groups --------------------------------------------------------------------------------------


def groups_table(view: GroupsView) -> RenderableType:
    """The chains as they are, those that are alike in one line."""
    several = f"{LAG}: of the vnodes of a line, the largest."
    return _groups(view, _alike(view), several)


def vnodes_table(view: GroupsView) -> RenderableType:
    """The chains as they are, a vnode a line."""
    return _groups(view, [[group] for group in view.groups], f"{LAG}.")


def plan_table(view: GroupsView) -> RenderableType:
    """What is left to do until the chains are as planned."""
    changes = {group.vnode: change_of(group, view.replication) for group in view.groups}
    if not any(changes.values()):
        return spaced([Text(f"nothing to change: {_sentence(view)}"), _lacking(view)])
    table = columns("VNODES", "OWNER", "JOIN", "GATHER", "LEAVE", "TO COPY>")
    for alike in _by(view.groups, lambda g: (g.owner, g.worker, changes[g.vnode])):
        change = changes[alike[0].vnode]
        if change:
            to_copy = len(change.joins) * sum(group.state_bytes for group in alike)
            table.add_row(
                format_vnodes(group.vnode for group in alike),
                f"{alike[0].owner} on {alike[0].worker}",
                ", ".join(change.joins) or "-",
                ", ".join(change.gathering) or "-",
                ", ".join(change.leaves) or "-",
                size(to_copy) if to_copy else "-",
            )
    return spaced(
        [
            Text(f"job {view.job} with replication {view.replication}: {_todo(changes.values())}"),
            table,
            Text("Copies join first; others leave once those are full."),
            _lacking(view),
        ]
    )


def applied_table(view: GroupsView) -> RenderableType:
    """The end of the wait: at the plan, or where only a query would go on."""
    there = "is as planned" if is_settled(view) else "waits for a query"
    return Text(f"job {view.job} {there}: {_sentence(view)}")


def groups_line(view: GroupsView) -> str:
    """How far the chains are, for who waits."""
    if is_settled(view):
        return f"groups of job {view.job}: as planned"
    changes = [change_of(group, view.replication) for group in view.groups]
    done = f"{full_copies(view)} of {counted(wanted_copies(view), 'copy', 'copies')} full"
    return f"groups of job {view.job}: {done}, {_todo(changes)}"


def _groups(view: GroupsView, lines: Iterable[list[GroupView]], note: str) -> RenderableType:
    table = columns("VNODES", "OWNER", "MEMBER", "ROLE", "LAG>", "BYTES>", "TIME>")
    for alike in lines:
        _add_chain(table, alike, view.replication)
    has_lag = any(group.members for group in view.groups)
    return spaced(
        [
            Text(f"job {view.job}: {_sentence(view)}"),
            table,
            Text(note) if has_lag else None,
            _unreadable(view),
        ]
    )


def _unreadable(view: GroupsView) -> Group | None:
    """Who gets no copies because it cannot read what it has, a line each."""
    if not view.unreadable:
        return None
    lines = [
        Text.assemble((f"worker {worker} gets no copies: ", "yellow"), fault)
        for worker, fault in sorted(view.unreadable.items())
    ]
    return Group(*lines)


def _add_chain(table: Table, alike: list[GroupView], replication: int) -> None:
    """A line for each member, and for each that shall be one."""
    first = alike[0]
    change = change_of(first, replication)
    head = (format_vnodes(group.vnode for group in alike), f"{first.owner} on {first.worker}")
    for n, member in enumerate(first.members):
        every = [group.members[n] for group in alike]
        batches, sizes, lags = (
            max((lag for m in every if (lag := getattr(m, name)) is not None), default=None)
            for name in ("lag_batches", "lag_bytes", "lag_s")
        )
        table.add_row(
            *head,
            member.worker,
            _role(member, leaves=member.worker in change.leaves),
            "-" if batches is None else counted(batches, "batch", "batches"),
            "-" if sizes is None else size(sizes),
            seconds(lags),
        )
        head = ("", "")
    for worker in change.joins:
        table.add_row(*head, worker, Text("to join", "yellow"), "-", "-", "-")
        head = ("", "")
    if head[0]:
        table.add_row(*head, "none", "-", "-", "-", "-")


def _role(member: MemberView, *, leaves: bool) -> Text:
    words = member.role.value
    if member.role is Role.FULL and not member.whole:
        words += ", no copy seen"
    if member.role is Role.JOINING and member.whole:
        words += ", copy is whole"
    fine = is_good(member) and not leaves
    return Text(words + (", leaves" if leaves else ""), "" if fine else "yellow")


def _sentence(view: GroupsView) -> str:
    """What is wanted, and what there is."""
    if not view.replication:
        return "no copies are wanted (replication 0)"
    wanted = counted(wanted_copies(view), "copy", "copies")
    many = counted(len(view.groups), "vnode")
    parts = [
        f"{wanted} of {many} wanted (replication {view.replication})",
        f"{full_copies(view)} full",
        _todo(change_of(group, view.replication) for group in view.groups),
        f"{view.lacking} without a place" if view.lacking else "",
    ]
    return ", ".join(part for part in parts if part)


def _todo(changes: Iterable[Change]) -> str:
    every = list(changes)
    counts = {
        "to join": sum(len(c.joins) for c in every),
        "gathering": sum(len(c.gathering) for c in every),
        "to leave": sum(len(c.leaves) for c in every),
    }
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number)


def _lacking(view: GroupsView) -> Group | None:
    """Why copies have no place, a line each."""
    if not view.lacking:
        return None
    title = f"{counted(view.lacking, 'copy has', 'copies have')} no place:"
    return Group(Text(title, "yellow"), *(Text(f"    {reason}") for reason in view.reasons))


def _alike(view: GroupsView) -> list[list[GroupView]]:
    """Groups by chain and plan; lags do not count."""

    def chain(group: GroupView) -> object:
        members = tuple((m.worker, m.role, m.whole) for m in group.members)
        return group.owner, group.worker, members, frozenset(group.planned)

    return _by(view.groups, chain)


def _by(groups: Iterable[GroupView], key: Callable[[GroupView], object]) -> list[list[GroupView]]:
    found: dict[object, list[GroupView]] = {}
    for group in groups:
        found.setdefault(key(group), []).append(group)
    return list(found.values())


# --- a checkpoint by hand ------------------------------------------------------------------------


def checkpoint_table(view: CheckpointView) -> RenderableType:
    """What there is of a checkpoint."""
    return facts(
        {
            "job": view.job,
            "through batch": f"{view.through} (generation/batch)"
            if view.through.batch >= 0
            else "none: no batch is released yet",
            "checkpointed": f"{view.done} of {counted(view.vnodes, 'vnode')}",
            "at every copy": f"{view.replicated} of {counted(view.vnodes, 'vnode')}",
        }
    )


def checkpoint_line(view: CheckpointView) -> str:
    """How far it is, for who waits."""
    state = "complete" if is_done(view) else missing_words(view)
    return f"checkpoint of job {view.job} through batch {view.through}: {state}"


# --- a drain -------------------------------------------------------------------------------------


def drain_table(found: Drain) -> RenderableType:
    """What was moved off a worker, and whether its host may be stopped."""
    operations = OperationList(operations=found.operations)
    return spaced([operations_table(operations) if found.operations else None, _safe(found)])


def drain_plan_table(found: Drain) -> RenderableType:
    """What a drain would do."""
    if found.undo:
        return Text(
            f"worker {found.worker} would be allowed vnodes and copies again"
            if found.draining
            else f"nothing to do: worker {found.worker} is not being drained"
        )
    if not found.held and not found.operations:
        return Text(f"nothing to do: worker {found.worker} holds nothing")
    plans = OperationList(operations=found.operations)
    leaves = Text(f"worker {found.worker} holds {held_words(found)}, all of which would leave it")
    return spaced([plans_table(plans) if plans.operations else None, leaves])


def drain_line(found: Drain) -> str:
    """How far it is, for who waits."""
    left = f"still holds {held_words(found)}" if found.held else "holds nothing any more"
    return f"drain of {found.worker}: it {left}"


def _safe(found: Drain) -> Text:
    if found.undo and not found.draining:
        return Text(f"nothing to do: worker {found.worker} is not being drained")
    if found.undo:
        return Text(f"worker {found.worker} may own vnodes and hold copies again")
    if not found.held:
        return Text(f"worker {found.worker} holds nothing: its host may be stopped", "green")
    if error_of_drain(found) is not None:
        return Text(f"worker {found.worker} still holds {held_words(found)}", "yellow")
    return Text(
        f"worker {found.worker} still holds {held_words(found)}: do not stop its host before"
        f" `rhinoctl drain {found.worker}` has ended with exit code 0",
        "yellow",
    )
