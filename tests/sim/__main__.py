"""``python -m tests.sim``: run seeds and tell what was found. `make sim` calls it.

Exit codes: 0 nothing was found, 1 something was, 2 usage.
"""

import argparse
import faulthandler
import logging
import os
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

from tests.fakes.rows import TABLES, Row
from tests.sim import faults as f
from tests.sim.bugs import BUGS, seeded
from tests.sim.plan import Plan, plan_of
from tests.sim.run import NOTHING, Outcome, simulate
from tests.sim.shrinking import shrink


@dataclass(frozen=True)
class Result:
    """What is counted of a seed's outcome, also from another process. A seed that found something
    is run again to be told of: it does the same."""

    seed: int
    kind: str
    virtual_s: float
    struck: Counter[type[f.Fault]]
    rows: frozenset[Row]


FINDINGS_MAX = 5
"""After so many seeds that found something the rest is not run."""

HANGS_S = 120.0
"""A seed takes a second or two."""

SIGN_OF_LIFE_S = 60.0
"""How often a run says how far it is."""


def main() -> int:
    """Run what the arguments say."""
    given = _arguments()
    logging.disable(logging.CRITICAL)
    with seeded(given.bug):
        if given.seed is not None:
            return _replay(plan_of(given.seed).without(frozenset(given.without)), given.shrink)
        return _run(*_seeds(given), given.jobs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", help="how many new ones, or FIRST:LAST+1")
    parser.add_argument("--seconds", type=float, help="as many new ones as fit")
    parser.add_argument("--first", type=int, help="the first new one; default: by the clock")
    parser.add_argument("--seed", type=int, help="one, told in full")
    parser.add_argument("--without", type=_numbers, default=(), help="faults to leave out: 0,3,4")
    parser.add_argument("--shrink", action="store_true", help="look for the fewest faults")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="processes; default: the cores")
    parser.add_argument("--bug", choices=BUGS, help="put this bug into the product")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _seeds(given: argparse.Namespace) -> tuple[Iterable[int], float]:
    """The seeds to run, and when to stop (a monotonic moment)."""
    first, colon, last = (given.seeds or "").partition(":")
    if colon:
        return range(int(first), int(last)), float("inf")
    base = given.first
    if base is None:
        base = time.time_ns() // 1000 % 1_000_000_000
    if given.seconds is not None:
        print(f"new seeds from {base} on, for {given.seconds:.0f} s", flush=True)
        return range(base, sys.maxsize), time.monotonic() + given.seconds
    many = int(first or 100)
    print(f"{many} new seeds from {base} on: {base}:{base + many}", flush=True)
    return range(base, base + many), float("inf")


def _run(seeds: Iterable[int], deadline: float, jobs: int) -> int:
    began, outcomes, found = time.monotonic(), 0, 0
    said = began
    struck: Counter[type[f.Fault]] = Counter()
    virtual_s, never_taken = 0.0, TABLES
    for result in _results(seeds, deadline, jobs):
        outcomes += 1
        virtual_s += result.virtual_s
        struck += result.struck
        never_taken -= result.rows
        if result.kind != NOTHING:
            found += 1
            _tell(simulate(plan_of(result.seed)))
            if found == FINDINGS_MAX:
                break
        if time.monotonic() - said >= SIGN_OF_LIFE_S:
            said = time.monotonic()
            print(f"seed {result.seed}: {outcomes} run, {found} found something", flush=True)
    took_s = time.monotonic() - began
    rate = outcomes / took_s if took_s else 0.0
    print(
        f"{outcomes} seeds in {took_s:.0f} s ({rate:.2f} a second, {virtual_s / 3600:.1f} hours of"
        f" virtual time); {found} found something"
    )
    never = sorted(kind.__name__ for kind in f.KINDS if not struck[kind])
    if never:
        print(f"faults that never struck: {', '.join(never)}")
    rows = ", ".join(
        f"{m} {before}-{event}-{after}" for m, before, event, after in sorted(never_taken)
    )
    print(f"rows of the machines' tables never taken: {rows or 'none'}")
    return 1 if found else 0


def _results(seeds: Iterable[int], deadline: float, jobs: int) -> Iterator[Result]:
    """In order; each process is given the next seed as soon as it is through with one."""
    if jobs == 1:
        for seed in seeds:
            if time.monotonic() >= deadline:
                return
            yield _result(seed)
        return
    asked: deque[tuple[int, Future[Result]]] = deque()
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for seed in seeds:
            if time.monotonic() >= deadline:
                break
            asked.append((seed, pool.submit(_result, seed)))
            if len(asked) >= 2 * jobs:
                yield _ended(asked)
        while asked:
            yield _ended(asked)


def _ended(asked: deque[tuple[int, Future[Result]]]) -> Result:
    seed, future = asked.popleft()
    try:
        return future.result()
    except BrokenProcessPool:
        under_way = ", ".join(str(each) for each in (seed, *(number for number, _ in asked)))
        sys.exit(f"a process ended, see above, with one of these seeds: {under_way}")


def _result(seed: int) -> Result:
    """Runs one in a process of its own. One that hangs ends that process, and so the run, and says
    where it was: it is of no use to wait for."""
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    try:
        outcome = simulate(plan_of(seed))
    finally:
        faulthandler.cancel_dump_traceback_later()
    return Result(seed, outcome.kind, outcome.virtual_s, outcome.struck, outcome.rows)


def _replay(plan: Plan, shrinking: bool) -> int:
    outcome = simulate(plan)
    if outcome.finding is not None and shrinking:
        outcome = shrink(outcome)
    _tell(outcome)
    return 0 if outcome.finding is None else 1


def _tell(outcome: Outcome) -> None:
    """All that is needed to run it again, and to understand it."""
    plan = outcome.plan
    left_out = sorted(set(range(len(plan_of(plan.seed).events))) - set(plan.numbers))
    again = f"make sim SEED={plan.seed}"
    if left_out:
        again += f" WITHOUT={','.join(map(str, left_out))}"
    print(f"\nseed {plan.seed} at commit {_commit()}: found {outcome.kind}")
    print(f"the plan: {plan}")
    print("what was done:", *outcome.done, sep="\n  ")
    for failure in dict.fromkeys(outcome.failures[-8:]):
        print(f"  the query failed: {failure}")
    if outcome.finding is not None:
        print(f"the finding: {outcome.finding}")
        for line in traceback.format_tb(outcome.finding.__traceback__)[-4:]:
            print(line, end="")
    print(f"digest {outcome.digest}, {outcome.virtual_s:.1f} s of virtual time")
    print(f"again: {again}\n", flush=True)


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
