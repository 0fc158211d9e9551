"""What an instance does next: random instances are fed until there is nothing left to do.

Invariants, checked at every command (numbers of `rhinoctl.protocol.feeding`):

1. a vnode's batches are applied in order, each once, without a gap, and only decided ones;
2. the batch whose output is not released is applied by all vnodes of a duty in one command;
3. a checkpoint never contains an unreleased batch;
4. what an owner needs comes before what a follower needs.

And at the end: everything that is owned or followed stands at the last batch (or before a gap in
the log), the output is made, nothing else is open.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.ids import BASE, BatchTime, Vnode
from rhinoctl.protocol.feeding import (
    ApplyCommand,
    CheckpointCommand,
    CloseCommand,
    Command,
    Feed,
    OpenCommand,
    next_command,
    successor,
)
from rhinoctl.protocol.records import Link

VNODES = 6


def chain(before: BatchTime, *times: BatchTime) -> list[Link]:
    """Each of the batches follows the one before it."""
    return [Link(*pair) for pair in zip(times, (before, *times), strict=False)]


@dataclass
class Model:
    """An instance, and the worker that it is on. `base` is where a vnode is opened from."""

    links: list[Link]
    released: BatchTime
    owned: frozenset[Vnode]
    follow: frozenset[Vnode]
    base: dict[Vnode, BatchTime]
    applied: dict[Vnode, BatchTime]
    pending: tuple[BatchTime, tuple[frozenset[Vnode], ...]] | None
    due: list[Vnode]
    outputs: int = 0
    done: list[Command] = field(default_factory=list)

    def feed(self) -> Feed:
        closed = self.follow - self.applied.keys()
        return Feed(
            applied=dict(self.applied),
            owned=self.owned,
            follow=self.follow,
            base={v: self.base[v] for v in closed if v in self.base},
            links=self.links,
            released=self.released,
            pending=self.pending,
            checkpoint=tuple(self.due),
        )

    def run(self) -> None:
        """Carry out commands until there is none; a live-lock fails."""
        bound = 4 * VNODES * (len(self.links) + 4)
        while (command := next_command(self.feed())) is not None:
            self.check_order(command)
            self.carry_out(command)
            self.done.append(command)
            assert len(self.done) < bound, self.done[-10:]

    def carry_out(self, command: Command) -> None:
        if isinstance(command, OpenCommand):
            assert command.vnode not in self.applied
            assert command.vnode in self.owned | self.follow
            self.applied[command.vnode] = self.base[command.vnode]
        elif isinstance(command, CloseCommand):
            del self.applied[command.vnode]
        elif isinstance(command, ApplyCommand):
            self.apply(command)
        else:
            assert self.applied[command.vnode] <= self.released, "invariant 3"
            self.due.remove(command.vnode)

    def apply(self, command: ApplyCommand) -> None:
        assert command.vnodes
        assert command.time in self.times(), "invariant 1: not decided"
        for vnode in command.vnodes:
            assert vnode in self.owned | self.follow
            link = successor(self.links, self.applied[vnode])
            assert link is not None
            assert link.time == command.time
            assert link.after == self.applied[vnode], "invariant 1: a gap"
        owed = self.pending[1] if self.pending and self.pending[0] == command.time else ()
        assert command.owned in (frozenset(), *owed), "invariant 2"
        assert command.owned <= command.vnodes, "invariant 2: owned, but not applied"
        for duty in owed:
            if command.vnodes & duty:
                assert command.owned == duty, "invariant 2: an output without some of its vnodes"
        for vnode in command.vnodes:
            self.applied[vnode] = command.time
        if command.owned:
            self.outputs += 1
            assert self.pending is not None
            left = tuple(duty for duty in self.pending[1] if duty != command.owned)
            self.pending = (self.pending[0], left) if left else None

    def check_order(self, command: Command) -> None:
        opens_a_follower = isinstance(command, OpenCommand) and command.vnode not in self.owned
        applies_followers = isinstance(command, ApplyCommand) and not command.vnodes & self.owned
        if opens_a_follower or applies_followers:
            assert self.owned <= self.applied.keys(), "invariant 4: an owned vnode is closed"
            movable = [v for v in self.owned if self.can_move(v)]
            assert not movable, "invariant 4: an owned vnode is behind"

    def can_move(self, vnode: Vnode) -> bool:
        """Whether the log has the vnode's next batch, and its output need not wait for others."""
        link = successor(self.links, self.applied[vnode])
        if link is None or link.after != self.applied[vnode]:
            return False
        following = link.time
        duty = self.duty_of(vnode)
        if self.pending is None or self.pending[0] != following or not duty:
            return True
        return {self.applied[v] for v in duty} == {self.applied[vnode]}

    def duty_of(self, vnode: Vnode) -> frozenset[Vnode]:
        """The vnodes with which this one makes a part of the output; none if it owes nothing."""
        owed = () if self.pending is None else self.pending[1]
        return next((duty for duty in owed if vnode in duty), frozenset())

    def reachable(self, at: BatchTime) -> BatchTime:
        """How far the log goes on from a batch without a gap."""
        while (link := successor(self.links, at)) and link.after == at:
            at = link.time
        return at

    def times(self) -> list[BatchTime]:
        return [link.time for link in self.links]


def model(draw: st.DrawFn, *, gaps: bool) -> Model:
    """An instance as any history of agents, instances and wishes may have left it."""
    first = draw(st.integers(0, 3))
    length = draw(st.integers(1, 8))
    batches = [BatchTime(0, first + n) for n in range(length)]
    if draw(st.booleans()):
        batches += [BatchTime(1, n) for n in range(draw(st.integers(1, 3)))]
    before = BatchTime(0, first - 1)
    released = draw(st.sampled_from([before, *batches]))
    places = [before, *(time for time in batches if time <= released)]
    vnodes = [Vnode(v) for v in range(VNODES)]
    owned = frozenset(draw(st.sets(st.sampled_from(vnodes))))
    follow = frozenset(draw(st.sets(st.sampled_from(vnodes))))
    base = {v: draw(st.sampled_from(places)) for v in vnodes if v in owned or draw(st.booleans())}
    applied = {v: draw(st.sampled_from([before, *batches])) for v in vnodes if draw(st.booleans())}
    pending = None
    if owned and released < batches[-1] and draw(st.booleans()):
        owing = sorted(draw(st.sets(st.sampled_from(sorted(owned)), min_size=1)))
        split = draw(st.integers(0, len(owing)))
        parts = (frozenset(owing[:split]), frozenset(owing[split:]))
        pending = (batches[-1], tuple(part for part in parts if part))
    links = chain(before, *batches)
    if gaps:
        lost = draw(st.sets(st.sampled_from(batches[:-1]), max_size=2)) if length > 1 else set()
        links = [link for link in links if link.time not in lost]
    due = draw(st.lists(st.sampled_from(vnodes), unique=True))
    return Model(links, released, owned, follow, base, applied, pending, due)


whole_logs = st.composite(lambda draw: model(draw, gaps=False))
logs_with_gaps = st.composite(lambda draw: model(draw, gaps=True))


@given(whole_logs())
def test_repeated_commands_reach_the_goal(instance: Model) -> None:
    owes = len(instance.pending[1]) if instance.pending is not None else 0
    opened = instance.applied.keys() | instance.base.keys()
    instance.run()
    last = instance.links[-1].time
    wanted = instance.owned | (instance.follow & opened)
    assert instance.applied == dict.fromkeys(wanted, last)
    assert instance.pending is None
    assert instance.outputs == owes


@given(logs_with_gaps())
def test_a_gap_in_the_log_makes_a_vnode_wait(instance: Model) -> None:
    instance.run()
    for vnode, at in instance.applied.items():
        waits = bool(instance.duty_of(vnode))
        assert at == instance.reachable(at) or (waits and at == instance.links[-1].after)


@given(whole_logs())
def test_what_is_done_is_not_done_again(instance: Model) -> None:
    """A restarted agent is another start: the choice depends on nothing but the view."""
    instance.run()
    assert next_command(instance.feed()) is None


# --- by example ----------------------------------------------------------------------------------

V0, V1, V2 = Vnode(0), Vnode(1), Vnode(2)


def links(*numbers: int) -> list[Link]:
    return [Link(BatchTime(0, number), BatchTime(0, number - 1)) for number in numbers]


def feed(**changes: object) -> Feed:
    fields: dict[str, object] = {
        "applied": {},
        "owned": frozenset(),
        "follow": frozenset(),
        "base": {},
        "links": links(0, 1, 2),
        "released": BatchTime(0, 1),
        "pending": None,
    }
    return Feed(**{**fields, **changes})  # type: ignore[arg-type]


def test_owner_and_follower_that_stand_together_go_together() -> None:
    """At the marker: the origin's batch is applied for its output, the target only follows."""
    at = BatchTime(0, 1)
    command = next_command(
        feed(
            applied={V0: at, V1: at},
            owned=frozenset({V0}),
            follow=frozenset({V1}),
            pending=(BatchTime(0, 2), (frozenset({V0}),)),
        )
    )
    assert command == ApplyCommand(
        time=BatchTime(0, 2), vnodes=frozenset({V0, V1}), owned=frozenset({V0})
    )


def test_a_vnode_behind_a_gap_does_not_leave_the_output_without_its_rows() -> None:
    """V1 cannot go on: batch 2 is not put out by V0 alone."""
    command = next_command(
        feed(
            applied={V0: BatchTime(0, 1), V1: BASE},
            owned=frozenset({V0, V1}),
            links=links(1, 2),
            pending=(BatchTime(0, 2), (frozenset({V0, V1}),)),
        )
    )
    assert command is None


def test_others_are_not_held_up_by_an_output_that_waits() -> None:
    command = next_command(
        feed(
            applied={V0: BatchTime(0, 1), V1: BASE, V2: BatchTime(0, 1)},
            owned=frozenset({V0, V1}),
            follow=frozenset({V2}),
            links=links(1, 2),
            pending=(BatchTime(0, 2), (frozenset({V0, V1}),)),
        )
    )
    assert command == ApplyCommand(time=BatchTime(0, 2), vnodes=frozenset({V2}), owned=frozenset())


def test_an_output_that_is_gone_is_made_again_from_the_checkpoint() -> None:
    """Design, invariant 14. An agent that starts while an instance applies finds no output yet,
    and later an instance that has applied the batch."""
    view = feed(
        applied={V0: BatchTime(0, 2)},
        owned=frozenset({V0}),
        pending=(BatchTime(0, 2), (frozenset({V0}),)),
    )
    assert next_command(view) == CloseCommand(vnode=V0)


def test_a_checkpoint_waits_for_the_release() -> None:
    view = feed(applied={V0: BatchTime(0, 2)}, owned=frozenset({V0}), checkpoint=(V0,))
    assert next_command(view) is None
    assert next_command(feed(**_released(view))) == CheckpointCommand(vnode=V0)


def _released(view: Feed) -> dict[str, object]:
    return {
        "applied": view.applied,
        "owned": view.owned,
        "checkpoint": view.checkpoint,
        "released": BatchTime(0, 2),
    }


def test_the_first_batch_of_a_generation_follows_the_last_of_the_one_before() -> None:
    command = next_command(
        feed(
            applied={V0: BatchTime(0, 9)},
            owned=frozenset({V0}),
            links=chain(BatchTime(0, 8), BatchTime(0, 9), BatchTime(1, 0)),
        )
    )
    assert command == ApplyCommand(time=BatchTime(1, 0), vnodes=frozenset({V0}), owned=frozenset())


def test_a_gap_before_a_generation_is_told_by_what_its_first_batch_follows() -> None:
    """No number says which batch of the former generation was its last."""
    view = feed(
        applied={V0: BatchTime(0, 8)},
        owned=frozenset({V0}),
        links=chain(BatchTime(0, 9), BatchTime(1, 0)),
    )
    assert next_command(view) is None


@given(st.sets(st.integers(-1, 20)), st.integers(-2, 21))
def test_the_successor_is_the_first_after(numbers: set[int], at: int) -> None:
    known = links(*sorted(numbers))
    later = [link for link in known if link.time > BatchTime(0, at)]
    assert successor(known, BatchTime(0, at)) == (later[0] if later else None)


def test_an_heir_makes_its_parts_one_by_one() -> None:
    """V0 is its own, V1 inherited: each part of the output is a file of its own."""
    at = BatchTime(0, 1)
    own, inherited = frozenset({V0}), frozenset({V1})
    view = feed(
        applied={V0: at, V1: at},
        owned=own | inherited,
        pending=(BatchTime(0, 2), (own, inherited)),
    )
    assert next_command(view) == ApplyCommand(time=BatchTime(0, 2), vnodes=own, owned=own)
