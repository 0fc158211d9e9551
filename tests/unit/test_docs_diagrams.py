"""The diagrams in the documents are those of the tables in the code."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.protocol import batches, handover
from rhinoctl.protocol.diagrams import mermaid

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```mermaid\n(.*?)\n```$", re.MULTILINE | re.DOTALL)

Table = Mapping[tuple[Any, type], frozenset[Any]]

DIAGRAMS: dict[str, tuple[Table, Enum]] = {
    "docs/protocol/batch.md": (batches.TRANSITIONS, batches.Phase.FENCING),
    "docs/protocol/handover.md": (handover.TRANSITIONS, handover.Phase.PLANNED),
}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_document_shows_the_table_that_the_code_consults(name: str) -> None:
    """If this fails: put ``rhinoctl.protocol.diagrams.mermaid(…)`` of the table there instead."""
    document = ROOT / name
    if not document.exists():
        pytest.skip(f"{name} is not written yet")
    assert mermaid(*DIAGRAMS[name]) in BLOCK.findall(document.read_text("utf-8"))


class Light(Enum):
    """A machine to draw."""

    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


class Switched:
    """An event."""


class Hit:
    """Another."""


def test_a_diagram_has_an_arrow_for_every_transition() -> None:
    table = {
        (Light.RED, Switched): frozenset({Light.GREEN, Light.RED}),
        (Light.GREEN, Switched): frozenset({Light.RED}),
        (Light.GREEN, Hit): frozenset({Light.RED, Light.BROKEN}),
        (Light.BROKEN, Hit): frozenset({Light.BROKEN}),
    }
    assert mermaid(table, Light.RED).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> red",
        "    red --> red: Switched",
        "    red --> green: Switched",
        "    green --> red: Hit, Switched",
        "    green --> broken: Hit",
        "    broken --> broken: Hit",
        "    broken --> [*]",
    ]
