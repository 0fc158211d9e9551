"""Whether hard links are possible where checkpoints need them, asked before anything is at stake.

A checkpoint is links to the tables of the live database, and the next one shares most of its files
with the last. Without links each is a whole copy: right, but it costs the room of every checkpoint
that is kept, and its bytes are written and hashed again.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from rhinoctl.state.disk import LINK_REFUSALS, LinkFunction

CHECKPOINTS, LIVE = "ckpt", "live"
"""The directories of a job between which links are made."""


def link_refusal(root: str, *, link: LinkFunction = os.link) -> OSError | None:
    """How the file system refuses links within a disk's directory, None if it makes them.

    Looks in the directory itself and, for each job that is there, from its live databases to its
    checkpoints: either may be a mount of its own. Leaves nothing. Raises OSError where a file
    cannot even be made.
    """
    pairs = [(Path(root), Path(root))]
    for job in sorted(Path(root).glob("jobs/*")):
        live, checkpoints = job / LIVE, job / CHECKPOINTS
        if live.is_dir() and checkpoints.is_dir():
            pairs += [(live, checkpoints)]
    found = (_refusal(source, target, link) for source, target in pairs)
    return next((refusal for refusal in found if refusal is not None), None)


def _refusal(source: Path, target: Path, link: LinkFunction) -> OSError | None:
    descriptor, probe = tempfile.mkstemp(prefix=".links.", suffix=".tmp", dir=source)
    os.close(descriptor)
    twin = str(target / f"{Path(probe).name.removesuffix('.tmp')}.twin.tmp")
    try:
        link(probe, twin)
    except OSError as error:
        if error.errno not in LINK_REFUSALS:
            raise
        return error
    finally:
        for path in (probe, twin):
            with suppress(FileNotFoundError):
                os.unlink(path)
    return None
