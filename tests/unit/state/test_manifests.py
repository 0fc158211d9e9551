"""Manifests and checked files: believed only if whole and ours."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.errors import CorruptFile, ForeignManifest
from rhinoctl.ids import BatchTime, JobUid, Vnode
from rhinoctl.state.hashing import content_hash
from rhinoctl.state.manifests import (
    FileEntry,
    Identity,
    Manifest,
    decode_checked,
    encode_checked,
    is_id,
)

IDENTITY = Identity(cluster="c-1", job=JobUid("j-1"), operator="counts", vnode=Vnode(3))
MANIFEST = Manifest(
    identity=IDENTITY,
    operator_version="1",
    vnodes=64,
    checkpoint_id="7-a_b",
    last_batch=BatchTime(1, 5),
    covers=BatchTime(1, 7),
    epoch=4,
    files=(
        FileEntry(name="000008.sst", size=12, blake3=content_hash(b"x")),
        FileEntry(name="CURRENT", size=0, blake3=content_hash(b"")),
    ),
    watermark_ms=123,
    parallelism=2,
    ranges=((1536, 2048),),
)


def decode(data: bytes, expected: Identity = IDENTITY) -> Manifest:
    return Manifest.decode(data, path="ckpt/3/7/manifest.json", expected=expected)


def test_what_is_written_is_read() -> None:
    assert decode(MANIFEST.encode()) == MANIFEST
    bare = Manifest(
        identity=IDENTITY,
        operator_version="",
        vnodes=4,
        checkpoint_id="0",
        last_batch=BatchTime(0, -1),
        covers=BatchTime(0, -1),
        epoch=1,
    )
    assert decode(bare.encode()) == bare
    assert MANIFEST.total_bytes == 12


@given(st.data())
def test_no_damaged_byte_is_believed(data: st.DataObject) -> None:
    """Invariant 9: nothing is served that was not verified."""
    whole = MANIFEST.encode()
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 2))]
    else:
        at = data.draw(st.integers(0, len(whole) - 2))
        flipped = whole[at] ^ data.draw(st.integers(1, 255))
        damaged = whole[:at] + bytes([flipped]) + whole[at + 1 :]
    with pytest.raises(CorruptFile, match=r"ckpt/3/7/manifest\.json"):
        decode(damaged)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\0" * 400, b"null", b"[" * 100_000])
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="manifest"):
        decode(data)


@pytest.mark.parametrize(
    "other",
    [
        replace(IDENTITY, cluster="c-2"),
        replace(IDENTITY, job=JobUid("j-2")),
        replace(IDENTITY, operator="other"),
        replace(IDENTITY, vnode=Vnode(4)),
    ],
)
def test_anothers_manifest_is_refused_naming_both(other: Identity) -> None:
    with pytest.raises(ForeignManifest) as caught:
        decode(MANIFEST.encode(), expected=other)
    assert str(IDENTITY) in caught.value.message
    assert str(other) in caught.value.message


@pytest.mark.parametrize("version", [2, 99, None, "1"])
def test_an_unknown_format_is_refused(version: object) -> None:
    body = json.loads(MANIFEST.encode())["body"] | {"format_version": version, "new": 1}
    with pytest.raises(ForeignManifest, match=f"format {version}"):
        decode(encode_checked(body))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "4"},
        {"covers": [1]},
        {"files": [{"name": "../../etc/passwd", "size": 1, "blake3": "0" * 64}]},
        {"files": [{"name": "manifest.json", "size": 1, "blake3": "0" * 64}]},
        {"files": [{"name": "a", "size": 1, "blake3": "../x"}]},
        {"checkpoint_id": "../x"},
        {"last_batch": [1, 9]},
        {"vnodes": 2},
        {"ranges": [[5, 5]]},
        {"unheard_of": 1},
    ],
)
def test_a_sound_checksum_does_not_make_nonsense_true(change: dict[str, object]) -> None:
    body = json.loads(MANIFEST.encode())["body"] | change
    with pytest.raises(CorruptFile, match="not a manifest"):
        decode(encode_checked(body))


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a.tmp", "-a", "a" * 101, "a\n"])
def test_ids_name_directories(text: str) -> None:
    assert not is_id(text)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans())))
def test_checked_files_round_trip(body: dict[str, object]) -> None:
    assert decode_checked(encode_checked(body), path="x") == body
