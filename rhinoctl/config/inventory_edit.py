"""One worker more, or one less, in an inventory that a person wrote: an edit of its text.

Invariants:

1. All that is not of the worker stays, byte for byte: comments, order, line ends.
2. What comes out is read again, and means the inventory from before with exactly that worker more,
   or without it. Otherwise the edit is refused, and the error has what to do by hand.
3. To take out what was put in gives the text from before.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from rhinoctl.config.inventory import Inventory, parse_inventory
from rhinoctl.config.yaml_tree import read_tree
from rhinoctl.errors import AlreadyInInventory, CannotEditInventory, UnknownHost

WORKERS: Final = "workers"

OTHER_BREAKS: Final = re.compile("\r(?!\n)|[\x85\u2028\u2029]")
"""Ends of lines for YAML that editors do not show as such."""

PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+-]*")
"""What needs no quotes, unless YAML takes it for another type."""

STEP: Final = 2
"""Of indentation, between a dash and what it is followed by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A worker as it is to be written; what is None or empty is left to the defaults."""

    host: str
    name: str | None = None
    address: str | None = None
    rack: str | None = None
    slots: int | None = None
    disks: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The worker's name in the cluster."""
        return self.name or self.host.lower()

    def said(self) -> dict[str, Any]:
        """Its mapping in the inventory."""
        values = {
            "host": self.host,
            "name": self.name,
            "address": self.address,
            "rack": self.rack,
            "slots": self.slots,
            "disks": list(self.disks) or None,
        }
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The text of an inventory after an edit, and the lines that are new, or gone."""

    text: str
    lines: tuple[str, ...]


def with_worker(file: str, text: str, worker: NewWorker) -> Edited:
    """The inventory with a worker after its last one, written as that one is.

    Raises AlreadyInInventory; CannotEditInventory with the lines to write by hand, also where the
    worker cannot be as it is said.
    """
    before = _parsed(file, text)
    for other in before.workers:
        if worker.host.lower() == other.host.lower() or worker.id == other.id:
            raise AlreadyInInventory(
                f"worker {other.id} on {other.host} is in {file} already",
                remedy="`rhinoctl deploy` brings it up if it is not; for another worker, give"
                " another host and --name",
            )
    plain = _flow(worker.said())
    by_hand = (
        f"write it below `workers:` by hand, as `- {plain}` or `{plain}`, then `rhinoctl deploy`"
    )
    try:
        items = _items(text)
        last = items[-1]
        gap = " " * last.gap
        pairs = list(map(_pair, worker.said().items()))
        block = [plain] if last.flow else [pairs[0], *(f" {gap}{pair}" for pair in pairs[1:])]
        dash = " " * last.dash
        added = [f"{dash}-{gap}{block[0]}", *(f"{dash}{line}" for line in block[1:])]
        edited = _inserted(text, last.end, added)
    except _Unusual as why:
        raise CannotEditInventory(f"{file} was not changed: {why}", remedy=by_hand) from None
    wanted = read_tree(text).value
    wanted[WORKERS] = [*wanted[WORKERS], worker.said()]
    _check(file, edited, wanted, by_hand)
    return Edited(text=edited, lines=tuple(added))


def without_worker(file: str, text: str, worker: str) -> Edited:
    """The inventory without a worker, by its name. The comments on its lines, between them and
    indented below them go with it. Raises UnknownHost; CannotEditInventory, also for the last one.
    """
    before = _parsed(file, text)
    names = [each.id for each in before.workers]
    if worker not in names:
        raise UnknownHost(
            f"no worker {worker} is in {file}", remedy=f"there are {', '.join(names)}"
        )
    if len(names) == 1:
        raise CannotEditInventory(
            f"worker {worker} is the only one in {file}: an inventory has at least one",
            remedy="`rhinoctl undeploy` ends the whole cluster",
        )
    number = names.index(worker)
    by_hand = f"take worker {worker} out of {file} by hand, then `rhinoctl deploy`"
    try:
        item = _items(text)[number]
    except _Unusual as why:
        raise CannotEditInventory(f"{file} was not changed: {why}", remedy=by_hand) from None
    lines = text.splitlines(keepends=True)
    gone = lines[item.begin : item.end]
    kept = "".join(lines[: item.begin] + lines[item.end :])
    if not text.endswith("\n") and item.end == len(lines):
        kept = kept.removesuffix("\n").removesuffix("\r")
    wanted = read_tree(text).value
    wanted[WORKERS] = [each for n, each in enumerate(wanted[WORKERS]) if n != number]
    _check(file, kept, wanted, by_hand)
    return Edited(text=kept, lines=tuple(line.rstrip("\r\n") for line in gone))


def _parsed(file: str, text: str) -> Inventory:
    inventory, mistakes = parse_inventory(text)
    if inventory is None:
        raise CannotEditInventory(
            f"{file} has mistakes, the first in line {mistakes[0].line}: {mistakes[0].what}",
            remedy="mend them first: `rhinoctl config validate` says them all",
        )
    return inventory


def _check(file: str, text: str, wanted: Mapping[str, Any], by_hand: str) -> None:
    """Raise CannotEditInventory unless a text means what is wanted."""
    found, mistakes = parse_inventory(text)
    if found is None:
        raise CannotEditInventory(
            f"{file} was not changed, since it would be wrong then: {mistakes[0].what}",
            remedy=f"correct what you asked for; or {by_hand}",
        )
    if found != Inventory.model_validate(wanted):
        raise CannotEditInventory(
            f"{file} was not changed, since it would mean something else then", remedy=by_hand
        )


# --- where the workers are ------------------------------------------------------------------------


class _Unusual(Exception):
    """Why a text is not edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """A worker's lines, `begin` up to but not with `end`, counted from 0; the column of its dash,
    the spaces after that, and whether it is written with braces."""

    begin: int
    end: int
    dash: int
    gap: int
    flow: bool


def _items(text: str) -> list[_Item]:
    """The workers' lines. Raises _Unusual."""
    if OTHER_BREAKS.search(text):
        raise _Unusual("it has line ends that are neither \\n nor \\r\\n")
    root = yaml.SafeLoader(text).get_single_node()
    if not isinstance(root, yaml.MappingNode):
        raise _Unusual("it is no mapping")
    nodes = [value for key, value in root.value if key.value == WORKERS]
    if not isinstance(nodes[0], yaml.SequenceNode) or nodes[0].flow_style:
        raise _Unusual("its workers are written in brackets, and not as a list with dashes")
    lines = text.splitlines(keepends=True)
    found: list[_Item] = []
    for node in nodes[0].value:
        found.append(_item(lines, node, found[-1].end if found else root.start_mark.line))
    return found


def _item(lines: list[str], node: yaml.Node, after: int) -> _Item:
    mark = node.start_mark
    dashed = re.fullmatch(r"( *)-( +)", lines[mark.line][: mark.column])
    begin = mark.line
    while dashed is None and begin > after:
        begin -= 1
        dashed = re.fullmatch(r"( *)-()[ \r\n]*(?:#.*)?\s*", lines[begin])
    if dashed is None or begin < after:
        raise _Unusual(f"line {mark.line + 1} does not begin with the dash of a worker")
    dash, gap = len(dashed[1]), len(dashed[2]) or STEP - 1
    end = max(_last_lines(node)) + 1
    while end < len(lines) and _belongs(lines[end], dash):
        end += 1
    return _Item(begin=begin, end=end, dash=dash, gap=gap, flow=_braces(node))


def _braces(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and bool(node.flow_style)


def _last_lines(node: yaml.Node) -> Iterator[int]:
    """The lines on which parts of a value end; that of a block includes what comes after it."""
    yield node.start_mark.line
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        for key, value in node.value:
            yield key.end_mark.line
            yield from _last_lines(value)
    elif isinstance(node, yaml.SequenceNode) and not node.flow_style:
        for value in node.value:
            yield from _last_lines(value)
    else:
        mark = node.end_mark
        yield mark.line if mark.column else max(mark.line - 1, node.start_mark.line)


def _belongs(line: str, dash: int) -> bool:
    """Whether a line below a worker is a comment of it: indented more than its dash; or, from the
    first column on, a key that is commented out, as those that `rhinoctl init` writes."""
    comment = re.match(r"( *)#( *)\S", line)
    if comment is None:
        return False
    column = len(comment[1])
    return column > dash or (column == 0 and 1 + len(comment[2]) > dash + STEP)


# --- writing --------------------------------------------------------------------------------------


def _inserted(text: str, at: int, added: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines[0].endswith("\r\n") else "\n"
    block = end.join(added)
    if at == len(lines) and not text.endswith("\n"):
        return f"{text}{end}{block}"
    return "".join([*lines[:at], block, end, *lines[at:]])


def _flow(said: Mapping[str, Any]) -> str:
    return f"{{{', '.join(map(_pair, said.items()))}}}"


def _pair(pair: tuple[str, Any]) -> str:
    key, value = pair
    if isinstance(value, list):
        return f"{key}: [{', '.join(map(_scalar, value))}]"
    return f"{key}: {_scalar(value)}"


def _scalar(value: str | int) -> str:
    """A value as YAML, in quotes where it would be something else without."""
    text = str(value)
    if isinstance(value, int) or (PLAIN.fullmatch(text) and yaml.safe_load(text) == text):
        return text
    return json.dumps(text)
