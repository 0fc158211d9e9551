"""What the loss of a worker costs a running job, and what a switchover costs, by size of the state.

`python -m tests.bench.failover [--sizes 300,3072] [--rounds 5] [--query counts]`. In one run, for
each size in MB: a job with one copy of each vnode runs on two workers under load. Each round a
worker's agent and instances are killed with SIGKILL; the worker is brought back, and the next round
begins once every vnode has its copy again. Then all vnodes of an instance are switched over as
often. Prints each, then medians: `detect` from the kill to the decision, `recover` from the
decision to the first batch applied by the last heir, and the share of the state that was fetched
over the network until then.
"""

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median

from rhinoctl.ops.demo_kill import failover_of, kill_worker
from rhinoctl.protocol.views import (
    GroupsRequest,
    OperationView,
    RescaleRequest,
    SwitchoverRequest,
)
from tests.bench.handover_pause import measured
from tests.integration.running import JOB, Running

WORKERS, VNODES = 2, 32
"""16 vnodes are on the victim, and one worker inherits all of them."""
WHOLE_S = 900.0


def whole(job: Running) -> None:
    """Wait until every vnode has its copies, nothing is under way, and checkpoints are at them."""
    deadline = time.monotonic() + WHOLE_S
    while time.monotonic() < deadline:
        view = job.client.job(JOB)
        groups = job.client.groups(JOB, GroupsRequest())
        if not view.lacking and view.operation is None and not groups.joins + groups.leaves:
            return
        time.sleep(0.2)
    raise AssertionError(f"copies are lacking: {job.client.job(JOB).lacking}")


def even(job: Running) -> None:
    """Give each worker its part of the vnodes again."""
    if len({i.worker for i in job.client.job(JOB).instances}) < WORKERS:
        measured(job, job.client.rescale(JOB, RescaleRequest(instances=WORKERS)).id)
        whole(job)


def lost(job: Running) -> tuple[float, OperationView]:
    """Kill a worker; returns the milliseconds to the decision, and the failover once measured."""
    accident = kill_worker(job.cluster, job.client, JOB)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        view = failover_of(job.client, accident)
        begun = view is not None and min(view.times.values()) > accident.at
        if view is not None and begun and view.recover_ms is not None:
            return 1000 * (min(view.times.values()) - accident.at), view
        time.sleep(0.1)
    raise AssertionError(f"no failover of {accident.worker}")


def one_size(directory: Path, query: str, state_mb: int, rounds: int) -> None:
    job = Running(
        directory,
        workers=WORKERS,
        query=query,
        state_mb=state_mb,
        preload_ms=int(time.time() * 1000),
        rate=2000,
        keys=200_000,
        seconds=7200,
        vnodes=VNODES,
        instances=WORKERS,
        replication=1,
    )
    try:
        job.start()
        job.until(lambda e: e["event"] == "clock", within_s=1800)
        whole(job)
        job.batches(12)
        detects, recovers, shares = [], [], []
        for number in range(rounds):
            detect, view = lost(job)
            assert view.recover_ms is not None
            share = view.bytes_moved / max(1, view.state_bytes)
            print(
                f"  loss {number + 1} of {', '.join(view.lost)}: {len(view.moves)} vnodes,"
                f" {view.state_bytes / 2**20:.0f} MB; detect {detect:.0f} ms,"
                f" recover {view.recover_ms:.0f} ms, replayed {view.replayed_batches} batches,"
                f" fetched {view.bytes_moved / 2**20:.1f} MB",
                flush=True,
            )
            detects.append(detect)
            recovers.append(view.recover_ms)
            shares.append(share)
            job.up()
            whole(job)
            even(job)
            job.batches(6)
        pauses = []
        for _ in range(rounds):
            source = max(job.client.job(JOB).instances, key=lambda i: len(i.vnodes)).id
            (begun,) = job.client.switchover(SwitchoverRequest(target=source)).operations
            moved = measured(job, begun.id)
            pauses.append(moved.pause_ms or 0.0)
            print(
                f"  switchover of {source}: {len(moved.moves)} vnodes, pause"
                f" {moved.pause_ms} ms, total {moved.total_ms} ms,"
                f" fetched {moved.bytes_moved / 2**20:.1f} MB",
                flush=True,
            )
            whole(job)
            job.batches(11)
        view = job.client.job(JOB)
        print(
            f"{query}, {state_mb} MB: detect median {median(detects):.0f} ms, recover median"
            f" {median(recovers):.0f} ms, maximum {max(recovers):.0f} ms (n={rounds});"
            f" fetched at most {100 * max(shares):.2f} % of the state; switchover pause median"
            f" {median(pauses):.0f} ms, maximum {max(pauses):.0f} ms; checkpoints:"
            f" {view.fetched_bytes / max(1, view.applied_bytes):.2f} bytes a byte applied",
            flush=True,
        )
    finally:
        job.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="300,3072")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--query", default="counts")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}")
    for size in chosen.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="rhinoctl-bench-") as directory:
            one_size(Path(directory), chosen.query, int(size), chosen.rounds)


if __name__ == "__main__":
    main()
