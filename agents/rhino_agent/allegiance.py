"""To which controller this worker listens, and what it keeps for one that loses its store."""

from dataclasses import dataclass
from typing import TypeVar

from rhino_agent.ports import event
from rhinoctl.ids import JobUid
from rhinoctl.protocol import codec
from rhinoctl.protocol.claims import Claim, Memo, is_late, objection
from rhinoctl.state.disk import StampingDisk

CLAIM = "claim.json"

T = TypeVar("T", Claim, Memo)


@dataclass(frozen=True, slots=True)
class Hearing:
    """What is made of a claim: why it is not listened to, or whether a newer one came first."""

    objection: str = ""
    late: bool = False


class Allegiance:
    """The newest claim that was listened to, durable before anything is done by it; and a memo of
    every job.

    A disk that refuses them is told, and tried again at the next heartbeat: to fall silent for it
    would be taken for a death. Until then this process knows them all the same.
    """

    def __init__(self, disk: StampingDisk) -> None:
        self._disk = disk
        self._kept: dict[str, Claim | Memo | None] = {}
        self._memos: dict[JobUid, Memo | None] = {}
        self.ruler: Claim | None = self._load(Claim, CLAIM)

    def hear(self, claim: Claim) -> Hearing:
        """Listen to a claim, or not."""
        why = objection(self.ruler, claim)
        if why:
            event("claim-refused", reign=claim.reign, number=claim.number, why=why)
            return Hearing(objection=why)
        if is_late(self.ruler, claim):
            return Hearing(late=True)
        if self.ruler is None or self.ruler.store != claim.store:
            event("claim-new-store", reign=claim.reign, store=claim.store)
        self.ruler = claim
        self._save(CLAIM, claim)
        return Hearing()

    def memo(self, uid: JobUid) -> Memo | None:
        """What is kept of a job."""
        if uid not in self._memos:
            self._memos[uid] = self._load(Memo, _memo_path(uid))
        return self._memos[uid]

    def keep(self, uid: JobUid, memo: Memo) -> None:
        """Keep what the controller knows of a job."""
        self.memo(uid)
        self._memos[uid] = memo
        self._save(_memo_path(uid), memo)

    def forget(self, uid: JobUid) -> None:
        """The job leaves this worker, with its directory."""
        self._memos.pop(uid, None)
        self._kept.pop(_memo_path(uid), None)

    def _save(self, path: str, what: Claim | Memo) -> None:
        if self._kept.get(path) == what:
            return
        try:
            self._disk.write_atomic(path, codec.dumps_checked(what))
        except OSError as fault:
            event("claim-not-kept", path=path, fault=fault)
        else:
            self._kept[path] = what

    def _load(self, kind: type[T], path: str) -> T | None:
        if self._disk.size(path) is None:
            return None
        try:
            found: T = codec.loads_checked(kind, self._disk.read(path))
        except codec.CodecError as fault:
            event("claim-unreadable", path=path, fault=fault)
            return None
        self._kept[path] = found
        return found


def _memo_path(uid: JobUid) -> str:
    return f"jobs/{uid}/memo.json"
