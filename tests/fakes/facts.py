"""A host that is fit for anything, as it says of itself; a test changes what it is about."""

from typing import Any

from rhinoctl.remote.facts import DirectoryFacts, HostFacts, Room

GB = 1 << 30


def directory(path: str, **changes: Any) -> DirectoryFacts:
    fields = {
        "path": path,
        "there": path,
        "is_file": False,
        "mount": path,
        "type": "ext2/ext3",
        "space": Room(whole=100 * GB, free=90 * GB),
        "inodes": Room(whole=6_000_000, free=5_000_000),
        "writable": True,
        "links": True,
        "reflinks": False,
        "executes": True,
        "sync_s": 0.002,
    }
    return DirectoryFacts(**{**fields, **changes})


def host(**changes: Any) -> HostFacts:
    fields = {
        "user": "spark",
        "uid": 1000,
        "host": "w1",
        "system": "Linux",
        "machine": "x86_64",
        "libc": "glibc 2.36",
        "machine_id": "a1",
        "clock_ahead_s": 0.01,
        "clock_error_s": 0.02,
        "cpus": 8,
        "memory_bytes": 32 * GB,
        "memory_free_bytes": 20 * GB,
        "open_files": 1 << 20,
        "systemd": True,
        "sudo": False,
        "temp": "yes",
        "pythons": (((3, 9), "/usr/bin/python3"), ((3, 12), "/usr/bin/python3.12")),
        "spark": ("4.2.1",),
        "directories": (directory("/opt/rhinoctl"), directory("/d1"), directory("/d2")),
        "ports_taken": frozenset(),
    }
    return HostFacts(**{**fields, **changes})
