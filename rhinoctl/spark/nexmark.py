"""NEXMark events as pure functions of their number.

Event *n* (0-based, all kinds together) is fixed by a `NexmarkSpec` and *n* alone: whoever makes it,
in whatever split, makes the same bytes. That is what lets a batch be replayed, split otherwise, or
read again as the oracle of a run.

1. The kind of event n is its place in a cycle of 50: place 0 is a person, 1 to 3 are auctions, 4 to
   49 are bids (NEXMark's 1 : 3 : 46).
2. Every field is integer arithmetic on splitmix64(seed, field, n). No floats: their last bit may
   differ between two CPUs. No `numpy.random`: its streams may differ between two versions.
3. The first `preload` events are of one kind, bids by default, with as many keys of their own, and
   carry a pad. Streams of the other kinds have no rows for these numbers.
   They fill state before the clock starts; no field of theirs depends on the clock.
4. Event n >= preload is created at base_ms + (n - preload) * 1000 / rate, whatever the consumer
   does (an open loop), and carries that time: a consumer that falls behind does not slow the clock,
   and what a record has waited is in its latency.
5. Records have the sizes of the Rhino paper, section 5.1.2: person 206, auction 269, bid 32 bytes,
   as the sum of the bytes of their fields (8 for a number or a time, the length for a string). A
   bid's pad comes on top.
6. Which keys are drawn how often is an option (`rhinoctl.spark.skew`), for the auctions that bids
   are on and for the sellers of auctions; bidders and preloaded bids are not skewed.

pyspark is not imported here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rhinoctl.errors import UsageError
from rhinoctl.spark.skew import EXPONENT_MAX, Buckets, Skew, hot_buckets, zipf_buckets

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Kind(Enum):
    """What an event is; also the value of the source's option ``stream``."""

    PERSON = "person"
    AUCTION = "auction"
    BID = "bid"


CYCLE: Final = 50
PLACES: Final = {Kind.PERSON: range(1), Kind.AUCTION: range(1, 4), Kind.BID: range(4, CYCLE)}
"""The places of each kind in a cycle of events."""

RECORD_BYTES: Final = {Kind.PERSON: 206, Kind.AUCTION: 269, Kind.BID: 32}

FIRST_ID: Final = 1000
"""Ids of persons and auctions start here, as in NEXMark."""

PRELOAD_ID: Final = 1_000_000_000
"""Preloaded bid n is on auction PRELOAD_ID + n, preloaded person or auction n has that id: above
all other ids."""

PRELOAD_MS: Final = 946_684_800_000
"""Preloaded event n was created n microseconds after 2000-01-01, if nothing else is said: known
before the clock starts, and above zero, where Spark's first watermark would call it late."""

ACTIVE_PEOPLE: Final = 1000
"""Sellers and bidders are drawn from so many of the newest persons, as in NEXMark."""

EVENTS_MAX: Final = 2**42
"""So many events at most: their times in microseconds stay inside 64 bits."""

BASE_MS_MAX: Final = 2**42
"""In the year 2109."""

KEYS_MAX: Final = PRELOAD_ID - FIRST_ID
RATE_MAX: Final = 10**9
PAD_BYTES_MAX: Final = 2**20

ROWS_MAX: Final = 65_536
"""Rows of one Arrow batch at most, the size to which Spark is set too."""

BATCH_BYTES_MAX: Final = 32 * 2**20
"""Bytes of pads in one Arrow batch at most: for a worker's memory, and Arrow's 31-bit offsets."""

TIME: Final = pa.timestamp("us", tz="UTC")

_POOL_BYTES: Final = 4 * 2**20
_GAMMA: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1
_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
_CITIES: Final = np.frombuffer(
    b"PhoenixSeattleBoulderBuffaloChicagoHoustonAtlantaOaklandMemphisLincolnRaleighSpokane",
    np.uint8,
).reshape(-1, 7)
_STATES: Final = np.frombuffer(b"AZWACONYILTXGACATNNENCORID", np.uint8).reshape(-1, 2)


def refusal(message: str, remedy: str) -> UsageError:
    """A `UsageError` that also shows its remedy in a traceback.

    Spark hands an error of a data source's process to the driver as the text of its traceback.
    """
    error = UsageError(message, remedy=remedy)
    error.add_note(f"Remedy: {remedy}")
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class NexmarkSpec:
    """Everything that fixes the events.

    `rate` is in events of all kinds per second. `base_ms` is the unix time in milliseconds at which
    the clock starts (None: not yet, only the preload can be made). Bids are drawn over `keys`
    auctions; `preload` events of `preload_kind` come before the clock, from `preload_ms` on in unix
    time, each with a pad of `pad_bytes` (0: there is no column `pad`). With the skew ZIPF key k of
    them is drawn in proportion to 1 / (k + 1) ** s, s being `zipf_exponent` hundredths; with HOT
    `hot_percent` of all draws are of the first `hot_keys` keys.

    Raises UsageError for a number out of its range.
    """

    seed: int = 0
    rate: int = 10_000
    keys: int = 100_000
    preload: int = 0
    preload_kind: Kind = Kind.BID
    preload_ms: int = PRELOAD_MS
    pad_bytes: int = 0
    base_ms: int | None = None
    skew: Skew = Skew.UNIFORM
    zipf_exponent: int = 100
    hot_percent: int = 50
    hot_keys: int = 1

    def __post_init__(self) -> None:
        check_range("seed", self.seed, 0, 2**63 - 1)
        check_range("rate", self.rate, 1, RATE_MAX)
        check_range("keys", self.keys, 1, KEYS_MAX)
        check_range("preload", self.preload, 0, EVENTS_MAX)
        check_range("preload_ms", self.preload_ms, 0, BASE_MS_MAX)
        check_range("pad_bytes", self.pad_bytes, 0, PAD_BYTES_MAX)
        check_range("base_ms", self.base_ms, 0, BASE_MS_MAX)
        check_range("zipf_exponent", self.zipf_exponent, 1, EXPONENT_MAX)
        check_range("hot_percent", self.hot_percent, 0, 100)
        check_range("hot_keys", self.hot_keys, 1, KEYS_MAX)
        if self.skew is Skew.HOT and self.hot_keys >= self.keys:
            raise refusal(
                f"option hot_keys is {self.hot_keys}, and there are {self.keys} keys",
                "give hot_keys below keys, or leave skew out",
            )


def check_range(option: str, value: int | None, low: int, high: int) -> None:
    """Raises UsageError if an option is given and outside of low to high."""
    if value is not None and not low <= value <= high:
        raise refusal(
            f"option {option} is {value}, outside {low} to {high}",
            f"give {option} a whole number from {low} to {high}",
        )


def schema(spec: NexmarkSpec, kind: Kind) -> pa.Schema:
    """The columns of a kind's rows."""
    columns = dict(_COLUMNS[kind])
    if kind is spec.preload_kind and spec.pad_bytes:
        columns["pad"] = pa.binary()
    return pa.schema(list(columns.items()))


def rows_before(spec: NexmarkSpec, kind: Kind, n: int) -> int:
    """How many events with a number below `n` are of the kind."""
    preloaded = min(n, spec.preload) if kind is spec.preload_kind else 0
    return preloaded + _places_before(kind, n) - _places_before(kind, min(n, spec.preload))


def persons(spec: NexmarkSpec, start: int, end: int) -> pa.RecordBatch:
    """The persons among the events start <= n < end, in order of n; ids follow n and are unique."""
    early, clocked = _events(spec, Kind.PERSON, start, end)
    n = np.concatenate((early, clocked))
    email = _letters(spec, _Field.EMAIL, n, 24)
    email[:, 12] = ord("@")
    email[:, 20:] = np.frombuffer(b".com", np.uint8)
    card = _bytes_of(*_draws(spec, _Field.CARD, n, 3))[:, :19] % 10 + ord("0")
    card[:, 4::5] = ord(" ")
    columns = [
        _numbers(np.concatenate((PRELOAD_ID + early, FIRST_ID + clocked // CYCLE))),
        _text(_letters(spec, _Field.NAME, n, 16)),
        _text(email),
        _text(card),
        _text(_CITIES[_below(_draw(spec, _Field.CITY, n), len(_CITIES))]),
        _text(_STATES[_below(_draw(spec, _Field.STATE, n), len(_STATES))]),
        _times(_all_created_us(spec, early, clocked)),
        _text(_padding(spec, _Field.PERSON_EXTRA, n, _PERSON_EXTRA_BYTES)),
    ]
    return _padded(spec, Kind.PERSON, columns, early, clocked)


def auctions(spec: NexmarkSpec, start: int, end: int) -> pa.RecordBatch:
    """The auctions among the events start <= n < end, in order of n; ids follow n and are unique.

    A seller is one of the newest persons, so that persons and auctions of one window join. With a
    skew each of the newest persons has a rank, which stays as long as it is one of them.
    """
    early, clocked = _events(spec, Kind.AUCTION, start, end)
    n = np.concatenate((early, clocked))
    created_us = _all_created_us(spec, early, clocked)
    initial = _price(_draw(spec, _Field.INITIAL_BID, n))
    lasts_us = 1_000_000 + _below(_draw(spec, _Field.LASTS, n), 60_000_000)
    place = PLACES[Kind.AUCTION]
    ids = FIRST_ID + clocked // CYCLE * len(place) + clocked % CYCLE - place.start
    columns = [
        _numbers(np.concatenate((PRELOAD_ID + early, ids))),
        _text(_letters(spec, _Field.ITEM, n, 20)),
        _numbers(initial),
        _numbers(initial + _price(_draw(spec, _Field.RESERVE, n))),
        _numbers(_sellers(spec, n)),
        _numbers(10 + _below(_draw(spec, _Field.CATEGORY, n), 5)),
        _times(created_us),
        _times(created_us + lasts_us),
        _text(_padding(spec, _Field.AUCTION_EXTRA, n, _AUCTION_EXTRA_BYTES)),
    ]
    return _padded(spec, Kind.AUCTION, columns, early, clocked)


def bids(spec: NexmarkSpec, start: int, end: int) -> pa.RecordBatch:
    """The bids among the events start <= n < end, in order of n, preloaded ones included.

    Raises UsageError if the range reaches past the preload while the clock has not started.
    """
    early, clocked = _events(spec, Kind.BID, start, end)
    n = np.concatenate((early, clocked)) if len(early) else clocked
    auction = np.concatenate((PRELOAD_ID + early, draw_auction(spec, clocked)))
    columns: list[pa.Array] = [
        _numbers(auction),
        _numbers(_person(spec, _Field.BIDDER, n)),
        _numbers(_price(_draw(spec, _Field.PRICE, n))),
        _times(_all_created_us(spec, early, clocked)),
    ]
    return _padded(spec, Kind.BID, columns, early, clocked)


def _padded(
    spec: NexmarkSpec, kind: Kind, columns: list[pa.Array], early: Numbers, clocked: Numbers
) -> pa.RecordBatch:
    """The rows, with a pad for those that are preloaded if their kind has any."""
    if spec.pad_bytes and kind is spec.preload_kind:
        pads = _binary(_pads(spec, early), pa.binary())
        columns = [*columns, pa.concat_arrays([pads, pa.nulls(len(clocked), pa.binary())])]
    return pa.RecordBatch.from_arrays(columns, schema=schema(spec, kind))


def draw_auction(spec: NexmarkSpec, n: Numbers) -> Numbers:
    """The auction that each bid n is on, of `spec.keys` ids from FIRST_ID on: in the order of their
    ranks if there is a skew."""
    words = _draw(spec, _Field.BID_AUCTION, n)
    buckets = _buckets(spec, spec.keys)
    if buckets is None:
        return FIRST_ID + _below(words, spec.keys)
    return FIRST_ID + _ranks(buckets, _draw(spec, _Field.BID_BUCKET, n), words)


def batches(spec: NexmarkSpec, kind: Kind, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """All rows of a kind among start <= n < end, in batches of at most ROWS_MAX rows and, of pads,
    BATCH_BYTES_MAX bytes; none is empty."""
    make = _MAKERS[kind]
    preload_step = max(1, min(ROWS_MAX, BATCH_BYTES_MAX // max(1, spec.pad_bytes)))
    clock_step = ROWS_MAX // len(PLACES[kind]) * CYCLE
    while start < end:
        if start < spec.preload:
            stop = min(end, spec.preload, start + preload_step)
        else:
            stop = min(end, start + clock_step)
        if rows_before(spec, kind, stop) > rows_before(spec, kind, start):
            yield make(spec, start, stop)
        start = stop


_MAKERS: Final[dict[Kind, Callable[[NexmarkSpec, int, int], pa.RecordBatch]]] = {
    Kind.PERSON: persons,
    Kind.AUCTION: auctions,
    Kind.BID: bids,
}

_COLUMNS: Final[dict[Kind, dict[str, pa.DataType]]] = {
    Kind.PERSON: {
        "id": pa.int64(),
        "name": pa.string(),
        "email": pa.string(),
        "credit_card": pa.string(),
        "city": pa.string(),
        "state": pa.string(),
        "time": TIME,
        "extra": pa.string(),
    },
    Kind.AUCTION: {
        "id": pa.int64(),
        "item_name": pa.string(),
        "initial_bid": pa.int64(),
        "reserve": pa.int64(),
        "seller": pa.int64(),
        "category": pa.int64(),
        "time": TIME,
        "expires": TIME,
        "extra": pa.string(),
    },
    Kind.BID: {
        "auction": pa.int64(),
        "bidder": pa.int64(),
        "price": pa.int64(),
        "time": TIME,
    },
}

_PERSON_EXTRA_BYTES: Final = RECORD_BYTES[Kind.PERSON] - (8 + 16 + 24 + 19 + 7 + 2 + 8)
_AUCTION_EXTRA_BYTES: Final = RECORD_BYTES[Kind.AUCTION] - (8 + 20 + 6 * 8)


# --- which events, and when


def _check_range(start: int, end: int) -> None:
    if not 0 <= start <= end <= EVENTS_MAX:
        raise refusal(
            f"events {start} to {end} are not a range within 0 to {EVENTS_MAX}",
            "start from a new checkpoint, or give the options that the checkpoint was made with",
        )


def _places_before(kind: Kind, n: int) -> int:
    """How many numbers below `n` have a place of the kind in their cycle."""
    place = PLACES[kind]
    return n // CYCLE * len(place) + min(max(n % CYCLE - place.start, 0), len(place))


def _events(spec: NexmarkSpec, kind: Kind, start: int, end: int) -> tuple[Numbers, Numbers]:
    """The numbers of the events of a kind in [start, end): preloaded ones, and the others."""
    _check_range(start, end)
    split = min(max(start, spec.preload), end)
    until = split if kind is spec.preload_kind else start
    return np.arange(start, until, dtype=np.int64), _clock_numbers(spec, kind, split, end)


def _all_created_us(spec: NexmarkSpec, early: Numbers, clocked: Numbers) -> Numbers:
    """Creation times of preloaded and of clock events."""
    return np.concatenate((spec.preload_ms * 1000 + early, _created_us(spec, clocked)))


def _clock_numbers(spec: NexmarkSpec, kind: Kind, start: int, end: int) -> Numbers:
    """The numbers of the events of a kind in [start, end) that are not preloaded."""
    _check_range(start, end)
    start = min(max(start, spec.preload), end)
    place = PLACES[kind]
    ordinals = np.arange(_places_before(kind, start), _places_before(kind, end), dtype=np.int64)
    return ordinals + ordinals // len(place) * (CYCLE - len(place)) + place.start


def _created_us(spec: NexmarkSpec, n: Numbers) -> Numbers:
    """Creation times of clock events, in microseconds since 1970."""
    if not len(n):
        return n
    if spec.base_ms is None:
        raise refusal(
            f"event {n[0]} comes after the preload, and the clock has not started",
            "give base_ms, or wait until the clock file exists",
        )
    return spec.base_ms * 1000 + (n - spec.preload) * 1_000_000 // spec.rate


# --- chance: integer arithmetic on splitmix64


def _finish(z: Words) -> Words:
    """Splitmix64's finisher; consumes its argument."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _words(seed: int, stream: int, n: Numbers) -> Words:
    """Word n of one of the seed's streams of random words."""
    origin = _finish(np.array([(seed * 1_000_003 + stream * _GAMMA) & _MASK], np.uint64))
    return _finish(n.astype(np.uint64) * np.uint64(_GAMMA) + origin)


class _Field(IntEnum):
    """What a random word is for. Wider fields have several streams each: `_draws`."""

    BID_AUCTION = 1
    BIDDER = 2
    PRICE = 3
    POOL = 4
    PAD = 5
    NAME = 6
    EMAIL = 7
    CARD = 8
    CITY = 9
    STATE = 10
    PERSON_EXTRA = 11
    SELLER = 12
    INITIAL_BID = 13
    RESERVE = 14
    LASTS = 15
    ITEM = 16
    CATEGORY = 17
    AUCTION_EXTRA = 18
    BID_BUCKET = 19
    SELLER_BUCKET = 20
    SELLER_RANK = 21


def _draw(spec: NexmarkSpec, field: _Field, n: Numbers) -> Words:
    """A random word for each event."""
    return _words(spec.seed, field, n)


def _draws(spec: NexmarkSpec, field: _Field, n: Numbers, count: int) -> list[Words]:
    """`count` random words for each event, up to 99."""
    return [_words(spec.seed, 1000 + 100 * field + i, n) for i in range(count)]


def _below(words: Words, limit: int | Numbers) -> Numbers:
    """Numbers in [0, limit), limit < 2^31: multiply and shift, which is cheaper than a modulo."""
    high = (words >> np.uint64(32)).astype(np.int64)
    return (high * limit) >> 32


def _price(words: Words) -> Numbers:
    """Prices in cents, from a dollar to about 670,000, small ones far more often."""
    return (100 + ((words >> np.uint64(38)) >> (words & np.uint64(15)))).astype(np.int64)


def _person(spec: NexmarkSpec, field: _Field, n: Numbers) -> Numbers:
    """The id of one of the newest persons at event n; the newest of all if none is there yet."""
    newest = n // CYCLE
    there = newest - -(-spec.preload // CYCLE) + 1
    back = _below(_draw(spec, field, n), np.clip(there, 1, ACTIVE_PEOPLE))
    return FIRST_ID + newest - back


def _buckets(spec: NexmarkSpec, keys: int) -> Buckets | None:
    """How so many keys are drawn; None: all alike."""
    if spec.skew is Skew.ZIPF:
        return zipf_buckets(keys, spec.zipf_exponent)
    if spec.skew is Skew.HOT and spec.hot_keys < keys:
        return hot_buckets(keys, spec.hot_keys, spec.hot_percent)
    return None


def _ranks(buckets: Buckets, words: Words, others: Words) -> Numbers:
    """A rank for each event, by one word for the bucket and another for the place in it."""
    found = buckets.find(words)
    return buckets.low[found] + _below(others, buckets.width[found])


def _sellers(spec: NexmarkSpec, n: Numbers) -> Numbers:
    """The seller of each auction n. Person p has rank p % ACTIVE_PEOPLE while it is one of the
    newest; where no person has the rank yet, any of the newest is taken."""
    alike = _person(spec, _Field.SELLER, n)
    buckets = _buckets(spec, ACTIVE_PEOPLE)
    if buckets is None:
        return alike
    words = _draw(spec, _Field.SELLER_BUCKET, n)
    rank = _ranks(buckets, words, _draw(spec, _Field.SELLER_RANK, n))
    newest = n // CYCLE
    person = newest - (newest - rank) % ACTIVE_PEOPLE
    return np.where(person >= -(-spec.preload // CYCLE), FIRST_ID + person, alike)


def _bytes_of(*words: Words) -> Bytes:
    """Rows of the words' bytes, eight of each word, in the same order on every machine."""
    return np.stack(words, axis=1).astype("<u8", copy=False).view(np.uint8)


def _letters(spec: NexmarkSpec, field: _Field, n: Numbers, width: int) -> Bytes:
    """A row of `width` random characters for each event."""
    return _LETTERS[_bytes_of(*_draws(spec, field, n, -(-width // 8)))[:, :width] & 31]


@lru_cache(maxsize=4)
def _pool(seed: int, width: int) -> Bytes:
    """Random bytes from which any `width` in a row are taken; made once in a process."""
    count = (_POOL_BYTES + width + 7) // 8
    pool = _bytes_of(_words(seed, _Field.POOL, np.arange(count, dtype=np.int64))).reshape(-1)
    pool.setflags(write=False)
    return pool


@lru_cache(maxsize=4)
def _letter_pool(seed: int, width: int) -> Bytes:
    return _LETTERS[_pool(seed, width) & 31]


def _pads(spec: NexmarkSpec, n: Numbers) -> Bytes:
    """A pad for each preloaded event: a window into the pool that opens with bytes of its own."""
    words = _draw(spec, _Field.PAD, n)
    windows = sliding_window_view(_pool(spec.seed, spec.pad_bytes), spec.pad_bytes)
    pads: Bytes = windows[_below(words, _POOL_BYTES)]
    own = min(8, spec.pad_bytes)
    pads[:, :own] = _bytes_of(words)[:, :own]
    return pads


def _padding(spec: NexmarkSpec, field: _Field, n: Numbers, width: int) -> Bytes:
    """The strings that bring a person or an auction to the size of its record."""
    windows = sliding_window_view(_letter_pool(spec.seed, width), width)
    return windows[_below(_draw(spec, field, n), _POOL_BYTES)]


# --- Arrow columns, without copies


def _numbers(values: Numbers) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _times(values: Numbers) -> pa.Array:
    return pa.Array.from_buffers(TIME, len(values), [None, pa.py_buffer(values)])


def _binary(rows: Bytes, kind: pa.DataType) -> pa.Array:
    """Rows of equal length as a column of variable length."""
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)[: count + 1]
    data = np.ascontiguousarray(rows)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _text(rows: Bytes) -> pa.Array:
    return _binary(rows, pa.string())
