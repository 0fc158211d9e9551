"""Rows that are brought together by key, with positions only: which pairs a join has.

*Old* rows were there before this batch, *new* ones came with it. Rows are given by the number of
the key that each has, in ascending order.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def distinct(columns: Sequence[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Number the combinations of some columns in order of first appearance: the number of each
    row, and the first row of each number."""
    rows = len(columns[0])
    numbers = np.zeros(rows, np.int64)
    several = False
    for column in columns:
        encoded = column.dictionary_encode()
        codes, many = _codes(encoded), len(encoded.dictionary)
        if several and many > 1:
            codes = _codes(pa.array(numbers * many + codes).dictionary_encode())
        if many > 1:
            numbers, several = codes, True
    first = np.zeros(int(numbers.max()) + 1 if rows else 0, np.int64)
    first[numbers[::-1]] = np.arange(rows)[::-1]  # of equal numbers the last that is written stays
    return numbers, first


def _codes(encoded: pa.DictionaryArray) -> np.ndarray:
    """Which entry of its dictionary each row is; those ascend by first appearance."""
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def pairs(
    keys: int, old: Sequence[np.ndarray], new: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of a left and a right row of one key of which at least one is new: the key, and
    the positions of both rows in "old, then new" of their side. By key, left row, right row.

    `old` and `new` have the left side's rows and the right's; `keys` is how many keys there are.
    """
    (left_key, left, left_new), (_, right, _) = map(_laid_out, old, new)
    had, came = (np.bincount(of[1], minlength=keys) for of in (old, new))
    first = np.cumsum(had + came) - had - came
    # An old left row meets the new right rows of its key, a new one all of them.
    start = first[left_key] + np.where(left_new, 0, had[left_key])
    count = came[left_key] + np.where(left_new, had[left_key], 0)
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    meets = np.arange(total) + np.repeat(start - (ends - count), count)
    return np.repeat(left_key, count), np.repeat(left, count), right[meets]


def _laid_out(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A side's rows, those of a key together and old before new: the key of each, its position,
    and whether it is new."""
    of = np.concatenate([old, new]).astype(np.int64)
    order = np.argsort(of, kind="stable")
    return of[order], order, order >= len(old)
