"""From a plan that finds something to the fewest faults that still do."""

from tests.sim.run import Outcome, simulate


def shrink(outcome: Outcome) -> Outcome:
    """Leave out one fault after the other, as long as a finding of the same kind is made. The rest
    may find it elsewhere: what is left out changes the order of turns after it."""
    tried: set[int] = set()
    while remaining := [n for n in outcome.plan.numbers if n not in tried]:
        number = remaining[-1]
        tried.add(number)
        shorter = simulate(outcome.plan.without(frozenset({number})))
        if shorter.kind == outcome.kind:
            outcome = shorter
    return outcome
