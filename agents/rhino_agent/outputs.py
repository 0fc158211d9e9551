"""The outputs that instances here have written and that are not released yet.

They are not durable: an output is believed only as long as the process that wrote it lives, since a
power loss may leave a file with its name and size and without its bytes. What is not believed is
removed, and made again from checkpoint and log (design, invariant 14).
"""

import re

from rhino_agent.ports import Ports
from rhinoctl.ids import BatchTime, InstanceId
from rhinoctl.protocol import messages as m

_NAME = re.compile(r"(?P<instance>[^.+]+)(\+(?P<part>\d+))?\.(?P<rows>\d+)\.arrow")
_FOLDER = re.compile(r"(\d+)-(\d+)")


PartKey = tuple[InstanceId, int]
"""Whose part of a batch's output: (instance, part of its duty)."""


class Outputs:
    """Files ``<root>/out/<generation>-<batch>/<instance>[+<part>].<rows>.arrow``."""

    def __init__(self, ports: Ports, root: str) -> None:
        self._ports = ports
        self._root = f"{root}/out"
        self._made: dict[BatchTime, dict[PartKey, m.OutputName]] = {}

    def of(self, time: BatchTime) -> dict[PartKey, m.OutputName]:
        """The outputs of a batch, by instance and part."""
        return self._made.get(time, {})

    def note(self, key: PartKey, time: BatchTime, rows: int, size: int) -> None:
        """An instance has written a part of a batch's output."""
        instance, part = key
        name = m.OutputName(
            worker=self._ports.settings.worker,
            instance=instance,
            time=time,
            rows=rows,
            size=size,
            part=part,
        )
        self._made.setdefault(time, {})[key] = name

    def find(self, instance: InstanceId) -> None:
        """Note what a living instance has written, perhaps while nobody listened."""
        for time, name, parts in self._files(instance):
            size = self._ports.disk.size(f"{self.folder(time)}/{name}") or 0
            self.note((instance, _part(parts)), time, int(parts["rows"]), size)

    def forget(self, instance: InstanceId) -> None:
        """Remove what an instance has written that does not live any more."""
        for time, name, parts in self._files(instance):
            self._ports.disk.remove(f"{self.folder(time)}/{name}")
            self._made.get(time, {}).pop((instance, _part(parts)), None)

    def release(self, through: BatchTime) -> None:
        """Remove the outputs of all batches up to one, and what killed writers left of them."""
        for time in [time for time in self._made if time <= through]:
            del self._made[time]
        for folder in self._ports.disk.list(self._root):
            of = _time(folder)
            if of is None or of <= through:
                self._ports.disk.remove(f"{self._root}/{folder}")

    def instances(self) -> set[InstanceId]:
        """Those of which there are files."""
        return {
            InstanceId(found["instance"])
            for folder in self._ports.disk.list(self._root)
            for name in self._ports.disk.list(f"{self._root}/{folder}")
            if (found := _NAME.fullmatch(name)) is not None
        }

    def folder(self, time: BatchTime) -> str:
        """Where a batch's outputs are, relative to the disk."""
        return f"{self._root}/{time.generation}-{time.batch}"

    def stem(self, key: PartKey, time: BatchTime) -> str:
        """Where an output is to be written, but for its rows and ending, relative to the disk."""
        instance, part = key
        return f"{self.folder(time)}/{instance}" + (f"+{part}" if part else "")

    def path(self, name: m.OutputName) -> str:
        """Where an output is, relative to the disk."""
        return f"{self.stem((name.instance, name.part), name.time)}.{name.rows}.arrow"

    def _files(self, instance: InstanceId) -> list[tuple[BatchTime, str, re.Match[str]]]:
        found = []
        for folder in self._ports.disk.list(self._root):
            time = _time(folder)
            for name in self._ports.disk.list(f"{self._root}/{folder}"):
                parts = _NAME.fullmatch(name)
                if time is not None and parts is not None and parts["instance"] == instance:
                    found.append((time, name, parts))
        return found


def _part(parts: re.Match[str]) -> int:
    return int(parts["part"] or 0)


def _time(folder: str) -> BatchTime | None:
    parts = _FOLDER.fullmatch(folder)
    return None if parts is None else BatchTime(int(parts[1]), int(parts[2]))
