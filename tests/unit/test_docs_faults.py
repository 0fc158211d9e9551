"""The table of faults in docs/testing.md names tests, and they exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/testing.md"
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of each row of the tables of faults and of scenarios."""
    text = PAGE.read_text()
    section = text[text.index("## Which test holds what") :].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if NAMED.search(row[-1])]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    for _, tests in rows():
        for path, name in NAMED.findall(tests):
            assert name in functions(ROOT / "tests" / path), f"{path}::{name}"


def test_every_fault_has_its_test() -> None:
    """Each row names one at least, and no clause is there twice."""
    clauses = [clause for clause, _ in rows()]
    assert len(clauses) == len(set(clauses)) >= 40
