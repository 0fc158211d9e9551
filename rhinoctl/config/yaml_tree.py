"""YAML with line numbers, and without its traps: what a person wrote, and where.

Invariants:

1. A key that is written twice in one mapping is refused; PyYAML would keep the last, silently.
2. Only plain data comes out; no tag of a document makes an object.
3. A document is bounded in bytes and in nodes, aliases expanded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

BYTES_MAX: Final = 1 << 20
"""An inventory of a thousand hosts has a tenth of it."""

NODES_MAX: Final = 100_000
"""Aliases of aliases can make a short document as large as one likes."""

TAB: Final = r"'\t'"
"""How PyYAML names one that it does not take."""

Where = tuple[str | int, ...]
"""The way to a value: keys and positions from the document's root."""


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """Something wrong with a document. `line` counts from 1; 0 stands for the whole document."""

    line: int
    what: str


@dataclass(slots=True)
class Tree:
    """A document: `value` is plain data; `lines` has where each value, and each key, begins, and
    `texts` what stands there for what is no mapping and no list."""

    value: Any = None
    lines: dict[Where, int] = field(default_factory=dict)
    texts: dict[Where, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def line(self, where: Where) -> int:
        """The line of a value, or of the nearest one around it that there is."""
        for length in range(len(where), -1, -1):
            if where[:length] in self.lines:
                return self.lines[where[:length]]
        return 0


def spelled(where: Where) -> str:
    """A way as people write it: workers[2].ssh.user, counted from 1."""
    text = ""
    for part in where:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_tree(text: str) -> Tree:
    """Read one YAML document. What is wrong with it is in `Tree.mistakes`, never raised."""
    tree = Tree()
    if len(text.encode()) > BYTES_MAX:
        tree.mistakes.append(Mistake(0, f"the file has more than {BYTES_MAX >> 20} MB"))
        return tree
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _Reader(loader, tree).read(node)
    except yaml.MarkedYAMLError as fault:
        tree.mistakes.append(_syntax(fault))
    except yaml.YAMLError as fault:  # a character that YAML has not
        tree.mistakes.append(Mistake(0, f"it is not YAML: {str(fault).splitlines()[0]}"))
    return tree


def _syntax(fault: yaml.MarkedYAMLError) -> Mistake:
    mark = fault.problem_mark or fault.context_mark
    said = fault.problem or fault.context or "unreadable"
    if TAB in said:
        said = "a tab stands where a value or an indent begins: use spaces"
    return Mistake(mark.line + 1 if mark is not None else 0, f"it is not YAML: {said}")


class _Reader:
    """Makes plain data of nodes, with an eye on what PyYAML lets pass."""

    def __init__(self, loader: yaml.SafeLoader, tree: Tree) -> None:
        self._loader = loader
        self._tree = tree
        self._nodes = 0
        self._above: list[yaml.Node] = []

    def read(self, node: yaml.Node) -> None:
        self._tree.value = self._value(node, ())

    def _value(self, node: yaml.Node, where: Where) -> Any:
        self._tree.lines.setdefault(where, node.start_mark.line + 1)
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise yaml.MarkedYAMLError(
                problem=f"it has more than {NODES_MAX} values", problem_mark=node.start_mark
            )
        if any(node is above for above in self._above):
            raise yaml.MarkedYAMLError(
                problem="an alias stands for what it is part of", problem_mark=node.start_mark
            )
        self._above.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return dict(self._pairs(node, where))
            if isinstance(node, yaml.SequenceNode):
                return [self._value(each, (*where, n)) for n, each in enumerate(node.value)]
            self._tree.texts[where] = str(node.value)
            return self._loader.construct_object(node)
        except ValueError as fault:  # 2026-13-01 looks like a date
            raise yaml.MarkedYAMLError(
                problem=f"{getattr(node, 'value', '')}: {fault}", problem_mark=node.start_mark
            ) from None
        finally:
            self._above.pop()

    def _pairs(self, node: yaml.MappingNode, where: Where) -> Iterator[tuple[str, Any]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node)
            if key in seen:
                said = f"`{key}` is there twice, first in line {seen[key]}"
                self._tree.mistakes.append(Mistake(line, said))
            seen[key] = line
            self._tree.lines[(*where, key)] = line
            yield key, self._value(value_node, (*where, key))

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(
                problem="a key is a word, not a list or a mapping", problem_mark=node.start_mark
            )
        if node.value == "<<":
            raise yaml.MarkedYAMLError(
                problem="`<<` is not taken; what workers share is written once, at the top",
                problem_mark=node.start_mark,
            )
        return str(node.value)
