"""A controller of canned answers: a real HTTP server on a Unix socket, and views to serve."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, Self

from rhinoctl.ids import BatchTime, DiskId, InstanceId, JobName, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.disks import DiskList, DiskReport, DiskState, DiskView
from rhinoctl.protocol.epochs import Role
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.verification import Checked, CheckedCheckpoint

TOKEN = "a-token-of-the-tests"

Answer = object | Callable[[bytes], object]
"""A view, a Problem, raw bytes with status 200, or a function of the request's body to one."""

STATUS_OF: dict[str, int] = {"unauthenticated": 401, "busy": 409, "unexpected": 500}


class FakeController:
    """Serves `answers` by (method, path), and keeps what it was asked in `asked`.

    A list is answered item by item, its last one for ever. Use it in a ``with``.
    """

    def __init__(self, directory: Path) -> None:
        self.answers: dict[tuple[str, str], Answer] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self._path = directory / "c.sock"
        self._server = _Server(str(self._path), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def address(self) -> str:
        return f"unix://{self._path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        image = codec.loads_image(body) if body else None
        self.asked.append((method, path, image))
        if token != f"Bearer {TOKEN}":
            found: Any = problem("unauthenticated", "the token is not this cluster's")
        else:
            found = self.answers.get((method, path), problem("unexpected", f"no answer to {path}"))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if callable(found):
            found = found(body)
        if isinstance(found, bytes):
            return 200, found
        status = STATUS_OF.get(found.code, 400) if isinstance(found, views.Problem) else 200
        return status, codec.dumps(found)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, controller: FakeController) -> None:
        self.controller = controller
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, as one that was interrupted does."""


class _Handler(BaseHTTPRequestHandler):
    def do(self) -> None:
        assert isinstance(self.server, _Server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        token = self.headers.get("Authorization", "")
        status, data = self.server.controller.answer(self.command, self.path, token, body)
        if data == b"hang up":
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do

    def log_message(self, format: str, *args: object) -> None:
        pass


# --- views ---------------------------------------------------------------------------------------


def problem(code: str, message: str, remedy: str = "do as the remedy says") -> views.Problem:
    return views.Problem(code=code, message=message, remedy=remedy)


def instance(number: int, worker: str, vnodes: range, **changes: Any) -> views.InstanceView:
    fields: dict[str, Any] = {
        "id": InstanceId(f"i{number}"),
        "worker": WorkerId(worker),
        "pid": 4000 + number,
        "ready": True,
        "vnodes": tuple(Vnode(v) for v in vnodes),
        "state_bytes": 12_500_000,
        "rss_bytes": 180_000_000,
        "applied": BatchTime(0, 41),
    }
    return views.InstanceView(**{**fields, **changes})


def job(**changes: Any) -> views.JobView:
    """Four instances on three workers, 16 vnodes; i0 and i3 share w1."""
    placed = [("w1", range(4)), ("w2", range(4, 8)), ("w3", range(8, 12)), ("w1", range(12, 16))]
    fields: dict[str, Any] = {
        "name": JobName("clicks"),
        "uid": JobUid("clicks-5f0e"),
        "operator": "running-aggregate",
        "vnodes": 16,
        "replication": 0,
        "generation": 0,
        "session": 3,
        "live": True,
        "epoch": 7,
        "batch": BatchTime(0, 41),
        "watermark_ms": 1_764_315_000_250,
        "instances": tuple(instance(n, w, owned) for n, (w, owned) in enumerate(placed)),
        "members": {Vnode(3): (WorkerId("w2"),)},
        "operation": None,
        "query_id": "1d9c7f6e-8a55-4d57-9d0b-6f6f3ad1b001",
    }
    return views.JobView(**{**fields, **changes})


def operation(**changes: Any) -> views.OperationView:
    """A handover of two vnodes to i1 that is complete."""
    fields: dict[str, Any] = {
        "id": OpId("op-7"),
        "job": JobName("clicks"),
        "kind": Kind.HANDOVER,
        "phase": Phase.COMPLETE,
        "moves": {Vnode(3): InstanceId("i1"), Vnode(12): InstanceId("i1")},
        "origins": {Vnode(3): InstanceId("i0"), Vnode(12): InstanceId("i3")},
        "reason": "",
        "times": {
            "planned": 1_700_000_000.0,
            "warming": 1_700_000_000.1,
            "armed": 1_700_000_001.5,
            "marked": 1_700_000_001.75,
            "complete": 1_700_000_002.0,
        },
        "marker": BatchTime(0, 40),
        "pause_ms": 41.5,
        "total_ms": 2000.0,
        "bytes_moved": 3_200_000,
        "state_bytes": 6_400_000,
        "progress": "",
    }
    return views.OperationView(**{**fields, **changes})


def worker(number: int, **changes: Any) -> views.WorkerView:
    fields: dict[str, Any] = {
        "id": WorkerId(f"w{number}"),
        "address": f"grpc+unix:///tmp/rhino-0/w{number}.sock",
        "health": views.Health.OK,
        "seen_s": 0.4,
        "pid": 3000 + number,
        "free_bytes": 50_000_000_000,
        "instances": 1,
        "vnodes_owned": 5,
        "log_bytes": 1_000_000,
    }
    return views.WorkerView(**{**fields, **changes})


def status(**changes: Any) -> views.StatusView:
    fields: dict[str, Any] = {
        "cluster": "0f3a9c51d2b4e688",
        "health": views.Health.OK,
        "workers": (worker(1, instances=2), worker(2), worker(3)),
        "jobs": (job(),),
        "operations": (),
        "findings": (),
    }
    return views.StatusView(**{**fields, **changes})


OWNERS = ("w1", "w2", "w3", "w1")
"""The workers of the job's instances, i0 to i3, each of which owns four vnodes."""


def member(worker: str, **changes: Any) -> views.MemberView:
    fields: dict[str, Any] = {
        "worker": WorkerId(worker),
        "role": Role.FULL,
        "whole": True,
        "lag_batches": 12,
        "lag_bytes": 480_000,
        "lag_s": 0.4,
    }
    return views.MemberView(**{**fields, **changes})


def group(vnode: int, *members: views.MemberView, **changes: Any) -> views.GroupView:
    """A vnode's chain, as `job` has it; planned are the members that it has."""
    fields: dict[str, Any] = {
        "vnode": Vnode(vnode),
        "owner": InstanceId(f"i{vnode // 4}"),
        "worker": WorkerId(OWNERS[vnode // 4]),
        "members": members,
        "planned": tuple(m.worker for m in members),
        "state_bytes": 3_000_000,
    }
    return views.GroupView(**{**fields, **changes})


def groups(*chains: views.GroupView, **changes: Any) -> views.GroupsView:
    """The job's groups with one copy of each vnode, or those given."""
    behind = {"w1": "w2", "w2": "w3", "w3": "w1"}
    every = [group(v, member(behind[OWNERS[v // 4]], lag_batches=v)) for v in range(16)]
    fields: dict[str, Any] = {
        "job": JobName("clicks"),
        "replication": 1,
        "groups": chains or tuple(every),
        "joins": 0,
        "leaves": 0,
        "lacking": 0,
        "reasons": (),
    }
    return views.GroupsView(**{**fields, **changes})


def checkpoint(**changes: Any) -> views.CheckpointView:
    fields: dict[str, Any] = {
        "job": JobName("clicks"),
        "through": BatchTime(0, 41),
        "vnodes": 16,
        "done": 16,
        "replicated": 16,
    }
    return views.CheckpointView(**{**fields, **changes})


def checked(number: int, worker: str, **changes: Any) -> CheckedCheckpoint:
    fields: dict[str, Any] = {
        "checkpoint": f"0-{number}-{worker}",
        "covers": BatchTime(0, number),
        "state": Checked.WHOLE,
    }
    return CheckedCheckpoint(**{**fields, **changes})


def verified(vnode: int, worker: str, *found: CheckedCheckpoint, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "vnode": Vnode(vnode),
        "worker": WorkerId(worker),
        "told": True,
        "broken": False,
        "checkpoints": found,
    }
    return views.VerifiedCopy(**{**fields, **changes})


def verification(*copies: views.VerifiedCopy, **changes: Any) -> views.VerifyView:
    """A round over two workers that have two checkpoints of each of four vnodes, or what is
    given; `silent` workers do not answer."""
    every = [
        verified(v, worker, checked(41, "w1"), checked(33 + v, "w1"))
        for v in range(4)
        for worker in ("w1", "w2")
    ]
    silent = changes.pop("silent", ())
    fields: dict[str, Any] = {
        "job": JobName("clicks"),
        "round": "1764315000.250-1",
        "deep": False,
        "copies": copies or tuple(every),
        "workers": tuple(
            views.VerifyingWorker(
                worker=WorkerId(w),
                live=w not in silent,
                done_bytes=0 if w in silent else 24_000_000,
                total_bytes=0 if w in silent else 24_000_000,
            )
            for w in sorted({copy.worker for copy in copies} or {"w1", "w2"})
        ),
    }
    return views.VerifyView(**{**fields, **changes})


def disk(worker: str, name: str, *, live: bool = True, **changes: Any) -> DiskView:
    """A disk in use, on a file system of its own."""
    fields: dict[str, Any] = {
        "disk": DiskId(name),
        "path": f"/mnt/{name}/rhino",
        "state": DiskState.IN_USE,
        "free_bytes": 50_000_000_000,
        "vnodes": 8,
        "bytes": 24_000_000,
        "shares": DiskId(name),
    }
    return DiskView(worker=WorkerId(worker), live=live, disk=DiskReport(**{**fields, **changes}))


def disks(*views_: DiskView) -> DiskList:
    """Those disks, or two of each of two workers."""
    every = [disk(worker, name) for worker in ("w1", "w2") for name in ("d1", "d2")]
    return DiskList(disks=views_ or tuple(every))


def failover(**changes: Any) -> views.OperationView:
    """A failover of w1 that is complete: i1 and i2 have inherited what i0 and i3 owned."""
    moves = {v: "i1" if v < 4 else "i2" for v in (*range(4), *range(12, 16))}
    fields: dict[str, Any] = {
        "id": OpId("op-9"),
        "kind": Kind.FAILOVER,
        "moves": {Vnode(v): InstanceId(heir) for v, heir in moves.items()},
        "origins": {Vnode(v): InstanceId("i0" if v < 4 else "i3") for v in moves},
        "times": {
            "armed": 1_700_000_000.0,
            "marked": 1_700_000_000.3,
            "complete": 1_700_000_001.0,
        },
        "pause_ms": None,
        "total_ms": 1000.0,
        "bytes_moved": 4_000,
        "state_bytes": 24_000_000,
        "reason": "nothing of worker w1 is running",
        "lost": ("w1",),
        "recover_ms": 850.0,
        "replayed_batches": 12,
    }
    return operation(**{**fields, **changes})


def loss(worker: str, **changes: Any) -> views.LossView:
    fields: dict[str, Any] = {
        "worker": WorkerId(worker),
        "vnodes": 4,
        "stranded": 0,
        "batches": 12,
        "seconds": 0.4,
    }
    return views.LossView(**{**fields, **changes})
