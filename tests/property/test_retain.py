"""Retention and leases, whatever the order of events (invariants 5, 8 and 9)."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from rhinoctl.ids import BatchTime, JobUid, Vnode
from rhinoctl.state.checkpoints import Level, VnodeCheckpoints
from rhinoctl.state.hashing import finish
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import Identity, Manifest
from tests.fakes.disk import FakeDisk

IDENTITY = Identity(cluster="c", job=JobUid("j"), operator="o", vnode=Vnode(3))
KEEP = 2


class Retention(RuleBasedStateMachine):
    """Checkpoints are taken, leased, retained and lost in crashes; a model says which are there."""

    ids = Bundle("ids")

    @initialize()
    def begin(self) -> None:
        self.disk = FakeDisk()
        self.leases = Leases()
        self.checkpoints = VnodeCheckpoints(self.disk, "ckpt/3", IDENTITY)
        self.there: list[str] = []
        self.leased: dict[str, float] = {}
        self.batch = 0
        self.now = 0.0

    @rule(target=ids, tables=st.sets(st.sampled_from("abcd"), min_size=1))
    def take(self, tables: set[str]) -> str:
        self.batch += 1
        checkpoint_id = f"c{self.batch}"
        making = self.checkpoints.begin(checkpoint_id)
        for table in tables:
            if self.disk.size(f"live/{table}.sst") is None:
                self.disk.append(f"live/{table}.sst", [table.encode() * 10])
            self.disk.link(f"live/{table}.sst", f"{making}/{table}.sst")
        self.disk.append(f"{making}/CURRENT", [b"%d" % self.batch])
        time = BatchTime(0, self.batch)
        finish(
            self.checkpoints.finish(
                Manifest(
                    identity=IDENTITY,
                    operator_version="1",
                    vnodes=4,
                    checkpoint_id=checkpoint_id,
                    last_batch=time,
                    covers=time,
                    epoch=1,
                )
            )
        )
        self.there.insert(0, checkpoint_id)
        return checkpoint_id

    @rule(checkpoint_id=ids, seconds=st.floats(1, 10))
    def lease(self, checkpoint_id: str, seconds: float) -> None:
        self.leases.take(Vnode(3), checkpoint_id, "peer", until=self.now + seconds)
        self.leased[checkpoint_id] = self.now + seconds

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.leases.expire(self.now)
        self.leased = {name: until for name, until in self.leased.items() if until > self.now}

    @rule()
    def retain(self) -> None:
        gone = {name for name in self.there[KEEP:] if name not in self.leased}
        assert set(self.checkpoints.retain(self.leases, keep=KEEP)) == gone
        self.there = [name for name in self.there if name not in gone]

    @rule(table=st.sampled_from("abcd"))
    def compact(self, table: str) -> None:
        """RocksDB removes a table; one of the same name with other content takes its place."""
        self.disk.remove(f"live/{table}.sst")
        self.disk.append(f"live/{table}.sst", [b"%10d" % self.batch])

    @rule(chance=st.randoms(use_true_random=False))
    def crash(self, chance: object) -> None:
        self.disk.crash(chance)  # type: ignore[arg-type]
        self.disk.remove("live")
        self.leases, self.leased = Leases(), {}
        self.checkpoints = VnodeCheckpoints(self.disk, "ckpt/3", IDENTITY)

    @invariant()
    def what_should_be_there_is_there_and_good(self) -> None:
        assert [m.checkpoint_id for m in self.checkpoints.complete()] == self.there
        for checkpoint_id in self.there:
            finish(self.checkpoints.verify(checkpoint_id, Level.HASHES))
        assert self.checkpoints.damaged == {}


Retention.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRetention = Retention.TestCase
