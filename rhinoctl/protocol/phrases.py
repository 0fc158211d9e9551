"""Lists of workers in sentences for people."""

from collections.abc import Iterable


def workers(names: Iterable[str], does: str = "", do: str = "") -> str:
    """``worker w1`` and what it `does`, or ``workers w1, w2`` and what they `do`; in the order that
    they are given in."""
    every = list(names)
    one = len(every) == 1
    who = f"worker{'' if one else 's'} {', '.join(every)}"
    return f"{who} {does if one else do}".rstrip()
