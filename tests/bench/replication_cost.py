"""What copies cost while nothing goes wrong: batch time and CPU with one copy against none.

`python -m tests.bench.replication_cost [--queries q5,q8] [--rates 130000,60000] [--rounds 3]`. In
one run, for each query in turn with `replication` 0 and 1: a job on two workers takes rows at the
given rate (about 40 % of what `rhinoctl bench steady` measures) for a while. Prints the median time
of a batch, and the CPU seconds of agents and instances for a million rows.

A batch begins every `--trigger-ms`, so that all have as many rows. With 0 each begins when the one
before has ended, and whatever takes time makes the next one larger.
"""

import argparse
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rhinoctl.ops import local
from tests.integration.running import JOB, Running

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 5
"""Batches that are not counted."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The batches' times and the median of each phase, in milliseconds, and CPU seconds of agents
    and instances for a million rows."""

    times: list[float]
    cpu_s: float
    phases: dict[str, float]


def cpu_s(job: Running) -> float:
    """CPU seconds of the agents and instances so far."""
    agents = [p.pid for p in local.status(job.cluster).processes if p.name != "controller"]
    pids = [*agents, *(i.pid for i in job.client.job(JOB).instances)]
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def one_run(
    directory: Path, query: str, rate: int, copies: int, how: argparse.Namespace
) -> Measured:
    """One job from its start to its end; `how` long and with which trigger."""
    job = Running(
        directory,
        workers=2,
        query=query,
        rate=rate,
        keys=100_000,
        seconds=3600,
        trigger_ms=how.trigger_ms,
        state_mb=0,
        vnodes=64,
        instances=2,
        replication=copies,
        preload_ms=int(time.time() * 1000),
    )
    try:
        job.start()
        job.until(lambda e: e["event"] == "clock", within_s=600)
        for _ in range(WARM_UP):
            job.batches(1)
        before, began = cpu_s(job), time.monotonic()
        times, rows = [], 0
        phases: dict[str, list[float]] = {}
        while time.monotonic() - began < how.seconds:
            event = job.batches(1)
            times.append(float(event["batch_ms"]))
            rows += int(event["rows_in"])
            for phase, spent in event["seconds"].items():
                phases.setdefault(phase, []).append(1000 * spent)
        return Measured(
            times=times,
            cpu_s=(cpu_s(job) - before) / rows * 1e6,
            phases={phase: median(spent) for phase, spent in phases.items()},
        )
    finally:
        job.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", default="q5,q8")
    parser.add_argument("--rates", default="130000,60000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--trigger-ms", type=int, default=1000)
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}")
    rates = map(int, chosen.rates.split(","))
    for query, rate in zip(chosen.queries.split(","), rates, strict=True):
        found: dict[int, list[Measured]] = {0: [], 1: []}
        for _ in range(chosen.rounds):
            for copies in (0, 1):
                with tempfile.TemporaryDirectory(prefix="rhinoctl-bench-") as directory:
                    run = one_run(Path(directory), query, rate, copies, chosen)
                found[copies].append(run)
                print(
                    f"  {query}, replication {copies}: batch {median(run.times):.0f} ms"
                    f" (n={len(run.times)}), {run.cpu_s:.1f} CPU s a million rows; "
                    + ", ".join(f"{phase} {ms:.0f}" for phase, ms in run.phases.items()),
                    flush=True,
                )
        batch = {c: median(t for run in runs for t in run.times) for c, runs in found.items()}
        spent = {c: median(run.cpu_s for run in runs) for c, runs in found.items()}
        print(
            f"{query} at {rate} rows/s: batch {batch[0]:.0f} ms without, {batch[1]:.0f} ms with a"
            f" copy ({100 * (batch[1] / batch[0] - 1):+.0f} %); CPU {spent[0]:.1f} and"
            f" {spent[1]:.1f} s a million rows",
            flush=True,
        )


if __name__ == "__main__":
    main()
