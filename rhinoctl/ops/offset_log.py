"""Spark's offset log in a local checkpoint directory, read and mended while no query runs.

The driver asks Spark's own objects for offsets (`rhinoctl.spark.query`). Where there is no query,
as for doctor and for a repair, only the files are left. Their form, of Spark 4.2 and 4.3, held by
tests/integration/test_repair_offsets.py: ``offsets/<batch>`` begins with a line ``v1`` or ``v2``
and one of metadata (JSON); then comes one line for each source, ``-`` for none, in version 2 with
the source's name and a colon before it. ``commits/<batch>`` is there once the batch
is committed: a line with its version, and one of JSON. ``metadata`` has the query's id. Beside each
may be a checksum, ``.<name>.crc``.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhinoctl.config.cluster import replace_file, writing_in
from rhinoctl.errors import UsageError
from rhinoctl.protocol.evidence import OffsetLog
from rhinoctl.protocol.records import offsets_digest

READ_BACK = 2
"""Offsets of so many batches before the newest are read: older ones cannot be replayed."""

OTHERWISE = "repair a copy of the checkpoint directory"

FIRST_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes for a batch before which it has seen no watermark."""


class Unreadable(ValueError):
    """A file of the offset log that cannot be read; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of the offset log: its version, its metadata and its offsets, in the form of
    `rhinoctl.spark.query.BatchFacts`."""

    version: str
    metadata: dict[str, Any]
    offsets: str


def local_checkpoint(given: str) -> Path:
    """The checkpoint directory of a query. Raises UsageError for anything but a local one."""
    plain = given.removeprefix("file://") if given.startswith("file:///") else given
    if "://" in plain:
        raise UsageError(
            f"{given} is no local directory; only those are read and written",
            remedy="copy the checkpoint's metadata, offsets and commits to a local directory, and"
            " name that (a repaired offsets file has to be copied back by hand)",
        )
    path = Path(plain)
    if not (path / "offsets").is_dir() or not (path / "metadata").is_file():
        raise UsageError(
            f"{path} is no checkpoint directory of a query: it has no metadata, or no offsets",
            remedy="name the directory that the query has as its checkpointLocation",
        )
    return path


def read_offset_log(given: str) -> OffsetLog:
    """What doctor has to know of an offset log. Raises UsageError."""
    path = local_checkpoint(given)
    newest, committed = _newest(path / "offsets"), _newest(path / "commits")
    digests, faults = {}, []
    for batch in range(max(0, newest - READ_BACK), newest + 1):
        try:
            digests[batch] = offsets_digest(read_entry(path, batch).offsets)
        except Unreadable as fault:
            faults.append(str(fault))
    query_id = ""
    try:
        query_id = query_of(path)
    except Unreadable as fault:
        faults.append(str(fault))
    return OffsetLog(
        directory=str(path),
        query_id=query_id,
        newest=newest,
        committed=committed,
        digests=digests,
        faults=tuple(faults),
        commit_fault=commit_fault(path, committed),
    )


def query_of(path: Path) -> str:
    """The id of the query that a checkpoint directory is of. Raises Unreadable."""
    try:
        return str(json.loads((path / "metadata").read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise Unreadable(f"metadata: {fault}") from fault


def read_entry(path: Path, batch: int) -> Entry:
    """The offsets of a batch. Raises Unreadable."""
    try:
        text = (path / "offsets" / str(batch)).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise Unreadable(f"offsets/{batch}: {fault}") from fault
    version, *lines = text.rstrip("\n").split("\n")
    if version not in ("v1", "v2") or len(lines) < 2:
        raise Unreadable(f"offsets/{batch}: {len(lines)} lines of version {version[:20]!r}")
    try:
        metadata = json.loads(lines[0])
        if not isinstance(metadata, dict):
            raise Unreadable(f"offsets/{batch}: its second line is no metadata")
        return Entry(version=version, metadata=metadata, offsets=_offsets(version, lines[1:]))
    except ValueError as fault:
        raise Unreadable(f"offsets/{batch}: {fault}") from fault


def commit_fault(path: Path, batch: int) -> str:
    """Why Spark cannot read the commit of a batch; empty if it can, and for -1, which has none."""
    if batch < 0:
        return ""
    try:
        version, *lines = (path / "commits" / str(batch)).read_text("utf-8").split("\n")
        if not re.fullmatch("v[0-9]+", version) or not lines:
            return f"commits/{batch}: {len(lines)} lines of version {version[:20]!r}"
        if not isinstance(json.loads(lines[0]), dict):
            return f"commits/{batch}: its second line is no metadata"
    except (OSError, ValueError) as fault:
        return f"commits/{batch}: {fault}"
    return ""


def _offsets(version: str, lines: list[str]) -> str:
    """The offsets as the decision records have them. Raises ValueError."""
    if version == "v1":
        for line in lines:
            if line != "-":
                json.loads(line)
        return json.dumps([None if line == "-" else line for line in lines])
    return json.dumps(_by_source(lines), sort_keys=True)


def _by_source(lines: list[str]) -> dict[str, str | None]:
    """Lines such as ``0:{"n": 100}``. Raises ValueError."""
    found: dict[str, str | None] = {}
    for line in lines:
        name, colon, text = line.partition(":")
        if not colon:
            raise ValueError(f"{line[:40]!r} names no source")
        if text != "-":
            json.loads(text)
        found[name] = None if text == "-" else text
    return found


def _newest(directory: Path) -> int:
    """The newest batch in a directory of Spark's logs, -1 for none."""
    names = os.listdir(directory) if directory.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def newest_offsets(path: Path) -> int:
    """The newest batch that Spark has planned, -1 for none."""
    return _newest(path / "offsets")


def newest_commit(path: Path) -> int:
    """The newest batch that Spark has committed, -1 for none."""
    return _newest(path / "commits")


# --- mending -------------------------------------------------------------------------------------


def entry_for(path: Path, batch: int, offsets: str, batch_time_ms: int) -> Entry:
    """The entry that a batch of these offsets has: with the settings of the entry that is there, as
    far as it can be read, or of the one before, and the watermark that the last commit left."""
    version = "v1" if isinstance(json.loads(offsets), list) else "v2"
    metadata = _metadata(path, batch) or _metadata(path, batch - 1) or {"conf": {}}
    watermark = _watermark_after(path, batch - 1, metadata.get("batchWatermarkMs", 0))
    known = {**metadata, "batchWatermarkMs": watermark, "batchTimestampMs": batch_time_ms}
    return Entry(version=version, metadata=known, offsets=offsets)


def _metadata(path: Path, batch: int) -> dict[str, Any] | None:
    """The metadata of an entry whose offsets may be torn; None if it cannot be read."""
    try:
        lines = (path / "offsets" / str(batch)).read_text("utf-8").split("\n")
        found = json.loads(lines[1])
    except (OSError, ValueError, IndexError):
        return None
    return found if isinstance(found, dict) and "conf" in found else None


def _watermark_after(path: Path, batch: int, otherwise: int) -> int:
    """The watermark of the batch after a committed one."""
    try:
        lines = (path / "commits" / str(batch)).read_text("utf-8").split("\n")
        return int(json.loads(lines[1])["nextBatchWatermarkMs"])
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return otherwise


def text_of(entry: Entry) -> str:
    """An entry as Spark writes it."""
    known = json.loads(entry.offsets)
    if entry.version == "v1":
        lines = ["-" if text is None else text for text in known]
    else:
        lines = [f"{name}:{'-' if text is None else text}" for name, text in known.items()]
    metadata = json.dumps(entry.metadata, separators=(",", ":"))
    return "\n".join([entry.version, metadata, *lines])


def write_entry(path: Path, batch: int, entry: Entry) -> Path | None:
    """Replace an entry, atomically. What was there is kept in a directory of its own beside the
    log, whose name is returned; None if nothing was. Raises UnwritableDirectory.

    The checksum goes first: Spark reads a file without one, and refuses one with a wrong one.
    """
    kept = _kept(path, "offsets", batch)
    replace_file(path / "offsets" / str(batch), text_of(entry).encode(), otherwise=OTHERWISE)
    return kept


def remove_entry(path: Path, batch: int) -> Path | None:
    """Take an entry away, so that Spark plans the batch anew. What was there is kept as it is by
    `write_entry`. Raises UnwritableDirectory."""
    kept = _kept(path, "offsets", batch)
    with writing_in(path / "offsets", OTHERWISE):
        (path / "offsets" / str(batch)).unlink(missing_ok=True)
    return kept


def write_commit(path: Path, batch: int) -> Path | None:
    """Write that a batch is committed, as the newest commit before it that can be read says it.
    What was there is kept as it is by `write_entry`. Raises UnwritableDirectory."""
    before = batch - 1
    while before >= 0 and commit_fault(path, before):
        before -= 1
    text = (path / "commits" / str(before)).read_bytes() if before >= 0 else FIRST_COMMIT
    kept = _kept(path, "commits", batch)
    replace_file(path / "commits" / str(batch), text, otherwise=OTHERWISE)
    return kept


def _kept(path: Path, kind: str, batch: int) -> Path | None:
    """Copy a file and its checksum to a directory of its own, and remove the checksum."""
    file = path / kind / str(batch)
    checksum = file.with_name(f".{batch}.crc")
    if not file.exists() and not checksum.exists():
        return None
    kept = _fresh(path / f"{kind}-before-repair-of-{batch}")
    with writing_in(path, OTHERWISE):
        kept.mkdir()
        for each in (file, checksum):
            if each.exists():
                shutil.copy2(each, kept / each.name)
        checksum.unlink(missing_ok=True)
    return kept


def _fresh(directory: Path) -> Path:
    """A name that nothing has: a second repair does not replace what the first has kept."""
    number, name = 1, directory
    while name.exists():
        number += 1
        name = directory.with_name(f"{directory.name}.{number}")
    return name
