"""The process that makes logical digests: `python -m rhino_agent.digesting`.

It is asked by a line on its input, a directory, and answers by a line of JSON. It ends with its
input, and so with its agent.
"""

import json
import os
import sys

from rhino_agent.digests import Digested
from rhinoctl.errors import CorruptFile
from rhinoctl.protocol import codec
from rhinoctl.state.digests import logical_digest
from rhinoctl.state.rocks import RocksImage, sweep_scratch

NICE = 10
"""Batches come first."""


def digested(directory: str) -> Digested:
    """Read a checkpoint in its place."""
    try:
        with RocksImage(directory) as image:
            found = logical_digest(image.scan())
    except CorruptFile as fault:
        return Digested(fault=fault.message, corrupt=True)
    except OSError as fault:
        return Digested(fault=str(fault))
    return Digested(digest=found.digest, entries=found.entries)


def main() -> int:
    os.nice(NICE)
    sweep_scratch()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(codec.dumps(digested(json.loads(line))) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
