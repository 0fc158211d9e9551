"""State diagrams for the documents, drawn from the tables that the machines consult."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

Phase = TypeVar("Phase", bound=Enum)


def mermaid(transitions: Mapping[tuple[Phase, type], frozenset[Phase]], *starts: Phase) -> str:
    """A mermaid ``stateDiagram-v2`` of a table from (phase, kind of event) to the next phases.

    Phases come in the order of their enum. An arrow has the names of all events that take it; a
    phase that no event leaves is final.
    """
    arrows: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, event), targets in transitions.items():
        for target in targets:
            arrows.setdefault((phase, target), []).append(event.__name__)
    phases = list(type(starts[0]))
    lines = ["stateDiagram-v2", *(f"    [*] --> {start.value}" for start in starts)]
    for phase in phases:
        for target in phases:
            events = arrows.get((phase, target))
            if events:
                lines.append(f"    {phase.value} --> {target.value}: {', '.join(sorted(events))}")
        if not any(source is phase and target is not phase for source, target in arrows):
            lines.append(f"    {phase.value} --> [*]")
    return "\n".join(lines)
