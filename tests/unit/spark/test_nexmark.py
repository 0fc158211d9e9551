"""Events are functions of (spec, n), in NEXMark's proportions and the sizes of the Rhino paper."""

import hashlib
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.errors import UsageError
from rhinoctl.spark import nexmark
from rhinoctl.spark.nexmark import Kind, NexmarkSpec
from rhinoctl.spark.skew import Skew

BASE_MS = 1_700_000_000_000
MAKERS = {Kind.PERSON: nexmark.persons, Kind.AUCTION: nexmark.auctions, Kind.BID: nexmark.bids}

specs = st.builds(
    NexmarkSpec,
    seed=st.sampled_from([0, 7, 2**63 - 1]),
    rate=st.integers(1, 10**6),
    keys=st.integers(1, 10**6),
    preload=st.integers(0, 400),
    pad_bytes=st.integers(0, 40),
    base_ms=st.just(BASE_MS),
    skew=st.sampled_from([Skew.UNIFORM, Skew.ZIPF]),
    zipf_exponent=st.sampled_from([50, 100, 170]),
) | st.builds(
    NexmarkSpec,
    preload=st.integers(0, 400),
    base_ms=st.just(BASE_MS),
    skew=st.just(Skew.HOT),
    hot_percent=st.integers(0, 100),
    hot_keys=st.integers(1, 2_000),
)
kinds = st.sampled_from(Kind)


def whole(spec: NexmarkSpec, kind: Kind, start: int, end: int) -> pa.Table:
    return pa.Table.from_batches([MAKERS[kind](spec, start, end)])


def field_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """The sum of the bytes of each row's fields: 8 for a number or a time, a string's length."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        else:
            total += column.type.bit_width // 8
    return total


@pytest.mark.parametrize(
    ("kind", "size"), [(Kind.PERSON, 206), (Kind.AUCTION, 269), (Kind.BID, 32)]
)
def test_records_have_the_sizes_of_the_paper(kind: Kind, size: int) -> None:
    """Rhino, section 5.1.2: persons of 206, auctions of 269, bids of 32 bytes, each with an 8-byte
    primary key and an 8-byte creation time."""
    batch = MAKERS[kind](NexmarkSpec(base_ms=BASE_MS), 0, 5_000)
    assert set(field_bytes(batch)) == {size} == {nexmark.RECORD_BYTES[kind]}
    assert batch.schema.field(0).type == pa.int64()
    assert batch.schema.field("time").type == pa.timestamp("us", tz="UTC")
    assert all(column.null_count == 0 for column in batch.columns)


def test_kinds_come_1_to_3_to_46() -> None:
    spec = NexmarkSpec(base_ms=BASE_MS)
    counts = {kind: MAKERS[kind](spec, 0, 50_000).num_rows for kind in Kind}
    assert counts == {Kind.PERSON: 1_000, Kind.AUCTION: 3_000, Kind.BID: 46_000}


@given(specs, kinds, st.lists(st.integers(0, 1_000), min_size=2, max_size=8))
def test_rows_do_not_depend_on_the_split(spec: NexmarkSpec, kind: Kind, cuts: list[int]) -> None:
    cuts.sort()
    pieces = [MAKERS[kind](spec, low, high) for low, high in pairwise(cuts)]
    assert pa.Table.from_batches(pieces).equals(whole(spec, kind, cuts[0], cuts[-1]))
    for piece, (low, high) in zip(pieces, pairwise(cuts), strict=True):
        before = nexmark.rows_before(spec, kind, low)
        assert piece.num_rows == nexmark.rows_before(spec, kind, high) - before
        piece.validate(full=True)


@given(specs, st.integers(0, 1_000), st.integers(0, 200))
def test_each_event_is_of_one_kind(spec: NexmarkSpec, start: int, length: int) -> None:
    times = [
        time
        for kind in Kind
        for time in MAKERS[kind](spec, start, start + length)["time"].cast(pa.int64()).to_pylist()
    ]
    clocked = [n for n in range(start, start + length) if n >= spec.preload]
    created = [BASE_MS * 1000 + (n - spec.preload) * 1_000_000 // spec.rate for n in clocked]
    preloaded = [t for t in times if t < BASE_MS * 1000]
    assert sorted(t for t in times if t >= BASE_MS * 1000) == created
    assert len(preloaded) == length - len(clocked)


@pytest.mark.parametrize("kind", Kind)
def test_batches_are_the_whole_in_bounded_pieces(kind: Kind) -> None:
    spec = NexmarkSpec(base_ms=BASE_MS, preload=100, pad_bytes=nexmark.PAD_BYTES_MAX)
    pieces = list(nexmark.batches(spec, kind, 60, 300_000))
    assert all(0 < piece.num_rows <= nexmark.ROWS_MAX for piece in pieces)
    assert all(piece.nbytes <= 2 * nexmark.BATCH_BYTES_MAX for piece in pieces)
    assert pa.Table.from_batches(pieces).equals(whole(spec, kind, 60, 300_000))


def test_preload_has_a_key_of_its_own_and_an_incompressible_pad_for_each_event() -> None:
    spec = NexmarkSpec(preload=3_000, pad_bytes=1_024)
    rows = nexmark.bids(spec, 0, 3_000)
    assert rows["auction"].to_pylist() == [1_000_000_000 + n for n in range(3_000)]
    pads = rows["pad"].to_pylist()
    assert {len(pad) for pad in pads} == {1_024}
    assert len(set(pads)) == 3_000
    block = b"".join(pads[:16])
    assert len(zlib.compress(block, 9)) >= len(block)


@given(specs, st.integers(1, 300))
def test_preload_does_not_depend_on_the_clock(spec: NexmarkSpec, preload: int) -> None:
    options = {"seed": spec.seed, "preload": preload, "pad_bytes": spec.pad_bytes}
    waiting = NexmarkSpec(**options)
    running = NexmarkSpec(**options, rate=spec.rate, base_ms=BASE_MS)
    assert whole(waiting, Kind.BID, 0, preload).equals(whole(running, Kind.BID, 0, preload))
    assert nexmark.persons(waiting, 0, preload).num_rows == 0
    with pytest.raises(UsageError):
        nexmark.bids(waiting, preload, preload + 50)


@pytest.mark.parametrize("pad_bytes", [0, 16])
def test_only_preloaded_bids_have_a_pad(pad_bytes: int) -> None:
    rows = nexmark.bids(NexmarkSpec(base_ms=BASE_MS, preload=7, pad_bytes=pad_bytes), 0, 500)
    if pad_bytes:
        assert rows["pad"].is_valid().to_pylist() == [n < 7 for n in range(rows.num_rows)]
    else:
        assert "pad" not in rows.schema.names


def test_bids_are_drawn_over_the_keys() -> None:
    drawn = nexmark.bids(NexmarkSpec(base_ms=BASE_MS, keys=500), 0, 100_000)["auction"].to_numpy()
    counts = np.bincount(drawn - nexmark.FIRST_ID, minlength=500)
    assert len(counts) == 500
    assert counts.min() > 100  # 184 each on average, with a deviation of 14
    assert counts.max() < 270


def test_sellers_are_persons_who_came_before() -> None:
    spec = NexmarkSpec(base_ms=BASE_MS, preload=120)
    people = set(nexmark.persons(spec, 0, 100_000)["id"].to_pylist())
    auctions = nexmark.auctions(spec, 150, 100_000)
    assert set(auctions["seller"].to_pylist()) <= people
    assert len(set(auctions["id"].to_pylist())) == auctions.num_rows


def test_seeds_give_other_rows() -> None:
    prices = [
        tuple(nexmark.bids(NexmarkSpec(base_ms=BASE_MS, seed=seed), 0, 500)["price"].to_pylist())
        for seed in range(20)
    ]
    assert len(set(prices)) == 20


def test_rows_are_the_same_on_every_machine_and_in_every_release() -> None:
    """A checkpoint outlives a release: a change here makes every running stream irreproducible."""
    spec = NexmarkSpec(seed=42, base_ms=BASE_MS, preload=100, pad_bytes=32)
    digest = hashlib.sha256()
    for kind in Kind:
        for column in whole(spec, kind, 0, 1_000).columns:
            plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            digest.update(repr(plain.to_pylist()).encode())
    assert digest.hexdigest() == "4eb94c8a275aa34617e7f66d8092aa673ebbcfc82803dd5159465943df303c55"


# ---------------------------------------------------------------------------- skew


def shares(values: np.ndarray) -> np.ndarray:
    """The part of all draws that each key got, the keys in order."""
    return np.bincount(values) / len(values)


def bid_shares(keys: int, **skew: object) -> np.ndarray:
    spec = NexmarkSpec(base_ms=BASE_MS, keys=keys, **skew)
    drawn = nexmark.bids(spec, 0, 500_000)["auction"].to_numpy() - nexmark.FIRST_ID
    assert drawn.min() >= 0
    assert drawn.max() < keys
    return np.concatenate((shares(drawn), np.zeros(keys)))[:keys]


@pytest.mark.parametrize("exponent", [60, 100, 150])
@pytest.mark.parametrize("keys", [7, 300, 5_000])
def test_zipf_gives_key_k_its_part(keys: int, exponent: int) -> None:
    """Against the law itself, for the first keys alone and for the others in groups."""
    weights = np.arange(1, keys + 1) ** (-exponent / 100)
    expected, found = (
        weights / weights.sum(),
        bid_shares(keys, skew=Skew.ZIPF, zipf_exponent=exponent),
    )
    cuts = [place for place in (0, 1, 2, 3, 5, 10, 100, 256, 300, 1_000, 3_000) if place < keys]
    expected, found = np.add.reduceat(expected, cuts), np.add.reduceat(found, cuts)
    deviation = np.sqrt(expected * (1 - expected) / 460_000)
    assert (np.abs(found - expected) < 5 * deviation + 0.0003).all()


@pytest.mark.parametrize(("hot_percent", "hot_keys"), [(0, 1), (50, 1), (80, 10), (100, 3)])
def test_hot_keys_get_their_part_and_share_it(hot_percent: int, hot_keys: int) -> None:
    found = bid_shares(200, skew=Skew.HOT, hot_percent=hot_percent, hot_keys=hot_keys)
    hot, others = found[:hot_keys], found[hot_keys:]
    assert hot.sum() == pytest.approx(hot_percent / 100, abs=0.005)
    for part in (hot, others):
        assert part.max() - part.min() <= 10 * np.sqrt(part.mean() / 460_000)


@pytest.mark.parametrize("skew", [Skew.ZIPF, Skew.HOT])
def test_sellers_are_skewed_too_and_came_before(skew: Skew) -> None:
    spec = NexmarkSpec(base_ms=BASE_MS, preload=120, skew=skew)
    people = set(nexmark.persons(spec, 0, 200_000)["id"].to_pylist())
    sellers = nexmark.auctions(spec, 150, 200_000)["seller"].to_numpy()
    assert set(sellers.tolist()) <= people
    newest = (np.arange(len(sellers)) // 3 + 3) + nexmark.FIRST_ID
    assert (newest - sellers < nexmark.ACTIVE_PEOPLE + 5).all()
    most = np.sort(np.bincount(sellers - nexmark.FIRST_ID))[::-1]
    plain = nexmark.auctions(NexmarkSpec(base_ms=BASE_MS, preload=120), 150, 200_000)
    assert most[0] > 10 * np.bincount(plain["seller"].to_numpy() - nexmark.FIRST_ID).max()


def test_so_many_hot_keys_that_all_sellers_are_alike() -> None:
    options = {"base_ms": BASE_MS, "skew": Skew.HOT, "hot_keys": 1_000, "hot_percent": 10}
    alike, hot = NexmarkSpec(base_ms=BASE_MS), NexmarkSpec(**options)
    assert nexmark.auctions(hot, 0, 9_999).equals(nexmark.auctions(alike, 0, 9_999))


def test_a_skew_changes_keys_only() -> None:
    alike, skewed = (
        nexmark.bids(NexmarkSpec(base_ms=BASE_MS, preload=9, skew=skew), 0, 5_000)
        for skew in Skew
        if skew is not Skew.HOT
    )
    assert alike.drop_columns(["auction"]).equals(skewed.drop_columns(["auction"]))
    assert alike["auction"].slice(0, 9).equals(skewed["auction"].slice(0, 9))
    assert not alike["auction"].equals(skewed["auction"])


def test_skewed_keys_are_the_same_on_every_machine_and_in_every_release() -> None:
    digest = hashlib.sha256()
    for skew in ({"skew": Skew.ZIPF, "zipf_exponent": 99}, {"skew": Skew.HOT, "hot_keys": 5}):
        spec = NexmarkSpec(seed=42, base_ms=BASE_MS, **skew)
        digest.update(repr(nexmark.bids(spec, 0, 5_000)["auction"].to_pylist()).encode())
        digest.update(repr(nexmark.auctions(spec, 0, 90_000)["seller"].to_pylist()).encode())
    assert digest.hexdigest() == "965bd0191c656f452c48f0b3c0c70abb3344742420dbb2a339b2d77ace92bd24"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rate": -5},
        {"keys": 0},
        {"keys": 2**40},
        {"seed": -1},
        {"preload": -1},
        {"pad_bytes": 2**30},
        {"base_ms": -1},
        {"zipf_exponent": 0},
        {"zipf_exponent": 501},
        {"hot_percent": 101},
        {"hot_percent": -1},
        {"hot_keys": 0},
        {"skew": Skew.HOT, "keys": 5, "hot_keys": 5},
    ],
    ids=str,
)
def test_a_number_out_of_its_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError) as refused:
        NexmarkSpec(**wrong)
    assert list(wrong)[-1] in refused.value.message
    assert refused.value.remedy


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 2**50)])
@pytest.mark.parametrize("kind", Kind)
def test_a_range_that_is_none_is_refused(kind: Kind, start: int, end: int) -> None:
    with pytest.raises(UsageError):
        MAKERS[kind](NexmarkSpec(base_ms=BASE_MS), start, end)
