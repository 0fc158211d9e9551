"""Which stores an agent listens to, over any history of copies (`rhinoctl.protocol.claims`)."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.control.registry import Registry
from rhinoctl.ids import WorkerId
from rhinoctl.protocol.claims import RUNS_KEPT, Claim, is_late, next_run, objection
from tests.fakes.store import FakeStore

AGENTS = 2


@dataclass(eq=False)
class Life:
    """A controller over its store, and all changes that are in the store."""

    store: FakeStore
    changes: frozenset[int]
    registry: Registry = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.registry = Registry(self.store)
        self.registry.begin()

    @property
    def claim(self) -> Claim:
        assert self.registry.claim is not None
        return self.registry.claim


class Cluster:
    """Controllers over copies of one store, and agents: what each has heard, and of which changes.

    The first life goes on for ever, and nothing is ever restored over it."""

    def __init__(self) -> None:
        self.lives = [Life(FakeStore(), frozenset())]
        self.backups: list[tuple[FakeStore, frozenset[int]]] = []
        self.ruler: list[Claim | None] = [None] * AGENTS
        self.heard: list[frozenset[int]] = [frozenset()] * AGENTS
        self.only_first = True
        self.number = 0

    def life(self, which: int) -> Life:
        return self.lives[which % len(self.lives)]

    def change(self, which: int, other: int) -> None:
        self.number += 1
        life = self.life(which)
        life.registry.put_draining(frozenset({WorkerId(f"w{self.number}")}))
        life.changes |= {self.number}

    def start(self, which: int, other: int) -> None:
        self.life(which).start()

    def back_up(self, which: int, other: int) -> None:
        life = self.life(which)
        self.backups.append((life.store.copied(), life.changes))

    def restore(self, which: int, other: int) -> None:
        if self.backups:
            store, changes = self.backups[which % len(self.backups)]
            self.lives.append(Life(store.copied(), changes))

    def lose(self, which: int, other: int) -> None:
        self.lives.append(Life(FakeStore(), frozenset()))

    def tell(self, which: int, other: int) -> None:
        life, agent = self.life(which), other % AGENTS
        known, claim = self.ruler[agent], life.claim
        if objection(known, claim):
            assert life is not self.lives[0] or not self.only_first, (known, claim)
            return
        if life is not self.lives[0]:
            self.only_first = False
        assert not is_late(known, claim), "nothing is said twice here"
        assert self.heard[agent] <= life.changes, "it lacks what this agent has heard of"
        self.ruler[agent], self.heard[agent] = claim, life.changes


ACTIONS = (
    *(Cluster.change, Cluster.change, Cluster.start, Cluster.back_up, Cluster.restore),
    *(Cluster.lose, Cluster.tell, Cluster.tell, Cluster.tell, Cluster.tell),
)
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2), st.integers(0, AGENTS - 1))


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_no_agent_listens_to_a_store_that_lacks_what_it_has_heard_of(steps: list[object]) -> None:
    """And the store that lacks nothing is never refused, as long as no copy was listened to."""
    cluster = Cluster()
    for act, which, other in steps:  # type: ignore[misc]
        act(cluster, which, other)


def test_an_agent_stays_with_one_of_two_controllers_over_copies() -> None:
    """Invariant 3, also when the other is started again and again, and writes more."""
    original = Life(FakeStore(), frozenset())
    copy = Life(original.store.copied(), frozenset())
    original.start()
    known = original.claim
    for _ in range(5):
        copy.registry.put_draining(frozenset())
        copy.start()
        assert objection(known, copy.claim)
    original.start()
    assert not objection(known, original.claim)


def test_a_worker_that_was_away_for_long_is_told_by_numbers() -> None:
    life = Life(FakeStore(), frozenset())
    known = life.claim
    for _ in range(3 * RUNS_KEPT):
        life.start()
    assert len(life.claim.before) == RUNS_KEPT
    assert not objection(known, life.claim)
    assert objection(known, next_run(Life(FakeStore(), frozenset()).claim, "r"))


def test_a_higher_reign_is_listened_to_and_never_left_again() -> None:
    old = Claim(reign=1, store="a", run="r", number=900)
    new = Claim(reign=2, store="b", run="s", number=1)
    assert not objection(old, new)
    assert objection(new, old)
    assert objection(new, Claim(reign=2, store="c", run="t", number=5)), "two recoveries at once"


def test_what_was_overtaken_is_late_and_no_fault() -> None:
    first = Claim(reign=1, store="a", run="r", number=5)
    second = Claim(reign=1, store="a", run="r", number=6)
    assert not objection(second, first)
    assert is_late(second, first)
    assert not is_late(first, second)
    assert not is_late(second, second)
