"""Where rows are, by the two hashes of their keys: a hash table whose slots are a numpy array.

Open addressing with linear probing, all keys of a call at once: each round looks at one slot of
every key that is not settled yet, so a call takes as many rounds as the longest probe, over ever
fewer keys. Sorted hashes with a binary search would take ten times as long to look up, and a merge
of the whole index for every batch of new keys.

Invariants:

1. A key's row is in the first free slot after its first hash, or before that one.
2. A removed row leaves a `GONE` slot, which ends no probe; half of the slots are `FREE` at least.
"""

import numpy as np

from rhinoctl.operators.row_hashes import Hashes

FREE = -1
GONE = -2
SLOTS_MIN = 1024
SLOTS_A_ROW = 4
"""After a rebuild; so another row costs 4 slots at first and 2 when the table is full."""


def grown(column: np.ndarray, rows: int) -> np.ndarray:
    """A column with room for more rows, which are not written: memory is used when they are."""
    longer = np.empty((rows, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer


class RowIndex:
    """Rows are numbers of the caller's; their hashes are kept here, in columns by row."""

    def __init__(self) -> None:
        self._first = np.zeros(1, np.uint64)
        self._second = np.zeros(1, np.uint64)
        self._slots = np.full(SLOTS_MIN, FREE, np.int32)
        self._taken = 0

    def resize(self, rows: int) -> None:
        """Make room for rows 0 … `rows` − 1."""
        self._first = grown(self._first, rows)
        self._second = grown(self._second, rows)

    def find(self, hashes: Hashes) -> np.ndarray:
        """The row of each key, −1 without one."""
        first, second = hashes
        found = np.full(len(first), -1, np.int64)
        keys = np.arange(len(first))
        at = self._start(first)
        while len(keys):
            rows = self._slots[at]
            same = (self._first[rows] == first) & (self._second[rows] == second) & (rows >= 0)
            found[keys[same]] = rows[same]
            on = np.flatnonzero(~same & (rows != FREE))
            keys, first, second = keys[on], first[on], second[on]
            at = self._next(at[on])
        return found

    def add(self, rows: np.ndarray, hashes: Hashes) -> None:
        """Enter rows whose keys are distinct and not here."""
        self._first[rows], self._second[rows] = hashes
        if 2 * (self._taken + len(rows)) > len(self._slots):
            self._rebuild(np.append(self._slots[self._slots >= 0], rows))
        else:
            self._enter(rows)

    def remove(self, rows: np.ndarray) -> None:
        """Take rows out."""
        at = self._start(self._first[rows])
        while len(rows):
            here = self._slots[at] == rows
            self._slots[at[here]] = GONE
            rows, at = rows[~here], self._next(at[~here])

    def _start(self, first: np.ndarray) -> np.ndarray:
        return (first & np.uint64(len(self._slots) - 1)).astype(np.int64)

    def _next(self, at: np.ndarray) -> np.ndarray:
        return (at + 1) & (len(self._slots) - 1)

    def _enter(self, rows: np.ndarray) -> None:
        self._taken += len(rows)
        at = self._start(self._first[rows])
        while len(rows):
            free = self._slots[at] == FREE
            self._slots[at[free]] = rows[free]  # of several keys at one slot, one gets it
            on = np.flatnonzero(self._slots[at] != rows)
            rows, at = rows[on], self._next(at[on])

    def _rebuild(self, rows: np.ndarray) -> None:
        size = max(SLOTS_MIN, 1 << (SLOTS_A_ROW * len(rows) - 1).bit_length())
        self._slots = np.full(size, FREE, np.int32)
        self._taken = 0
        self._enter(rows)
