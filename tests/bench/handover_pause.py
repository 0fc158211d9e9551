"""What a handover costs a running job: the pause, and an instance's memory, by size of the state.

`python tests/bench/handover_pause.py [--sizes 50,1024] [--moves 6] [--query counts]`. In one run,
for each size in MB: all 64 vnodes of a job under load are handed over from one worker's instance
to another's, again and again. Prints each move, then median and maximum of `pause_ms` (design,
section 13), and the peak resident memory of each instance process.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from rhinoctl.protocol.views import HandoverRequest, OperationView
from tests.integration.running import JOB, Running

VNODES = 64


def measured(job: Running, op: str) -> OperationView:
    """An operation's view once its pause is known."""
    job.ended(op, within_s=600)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        view = job.client.operation(op)
        if view.pause_ms is not None:
            return view
        time.sleep(0.1)
    return job.client.operation(op)


def peak_mb(pid: int) -> float:
    """A process's peak resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def settle(job: Running, epochs: int) -> None:
    """Wait until redundancy is lowered: the next move copies everything anew."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        view = job.client.job(JOB)
        if view.epoch >= epochs and not view.members:
            return
        time.sleep(0.2)


def one_size(directory: Path, query: str, state_mb: int, moves: int) -> None:
    job = Running(
        directory,
        workers=2,
        query=query,
        state_mb=state_mb,
        preload_ms=int(time.time() * 1000),  # in the window that is open
        rate=2000,
        keys=200_000,
        seconds=3600,
        vnodes=VNODES,
        instances=2,
    )
    try:
        job.start()
        job.until(lambda e: e["event"] == "clock", within_s=900)
        everything = tuple(range(VNODES))
        first = job.client.handover(JOB, HandoverRequest(vnodes=everything, to="i0"))
        measured(job, first.id)
        job.batches(12)
        pauses, totals = [], []
        for number in range(moves):
            settle(job, 0)
            job.batches(11)
            target = ("i1", "i0")[number % 2]
            begun = job.client.handover(JOB, HandoverRequest(vnodes=everything, to=target))
            view = measured(job, begun.id)
            assert view.pause_ms is not None
            assert view.total_ms is not None
            pauses.append(view.pause_ms)
            totals.append(view.total_ms)
            print(
                f"  move {number + 1}: pause {view.pause_ms:.0f} ms, total {view.total_ms:.0f} ms,"
                f" copied {view.bytes_moved / 2**20:.0f} MB,"
                f" state {view.state_bytes / 2**20:.0f} MB",
                flush=True,
            )
        peaks = {i.id: peak_mb(i.pid) for i in job.client.job(JOB).instances}
        print(
            f"{query}, {state_mb} MB: pause median {statistics.median(pauses):.0f} ms,"
            f" maximum {max(pauses):.0f} ms (n={len(pauses)});"
            f" total median {statistics.median(totals):.0f} ms;"
            f" peak memory {', '.join(f'{i} {mb:.0f} MB' for i, mb in peaks.items())}",
            flush=True,
        )
    finally:
        job.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="50,1024")
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--query", default="counts", help="counts, or q8: inside a window")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}")
    for size in chosen.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="rhinoctl-bench-") as directory:
            one_size(Path(directory), chosen.query, int(size), chosen.moves)


if __name__ == "__main__":
    main()
