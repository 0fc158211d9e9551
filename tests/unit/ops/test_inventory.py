"""`rhinoctl init`: what it writes is valid as it is, and tells the truth about defaults."""

import re
from pathlib import Path

import pytest

from rhinoctl.config.inventory import Part, parse_inventory
from rhinoctl.errors import InvalidInventory, InventoryExists, UnwritableDirectory
from rhinoctl.ops.inventory import InitRequest, init, validate


def request(file: Path, cluster: str = "clicks") -> InitRequest:
    return InitRequest(file=file, cluster=cluster, controller="c1", workers=("w1", "w2"))


def test_what_is_written_is_valid_and_has_every_key(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    written = init(request(file))
    assert written == validate(file)
    assert [worker.host for worker in written.workers] == ["w1", "w2"]
    text = file.read_text()
    there = set(re.findall(r"([a-z_]+):", text))
    assert {key for part in Part.__subclasses__() for key in part.model_fields} <= there


def test_the_defaults_that_it_shows_are_the_defaults(tmp_path: Path) -> None:
    """Those lines without the remark that a default is something else are taken as written."""
    file = tmp_path / "inventory.yml"
    init(request(file))
    bare, _ = parse_inventory(file.read_text())
    lines = []
    for line in file.read_text().splitlines():
        shown = re.match(r"#( *[a-z_]+: *[^ #].*)", line)
        example = "default:" in line or re.search(r"jump|identity|limits:|ssh:|rack", line)
        lines.append(shown.group(1) if shown and not example else line)
    told, mistakes = parse_inventory("\n".join(lines))
    assert mistakes == []
    assert told == bare
    assert sum(line.startswith("#") for line in lines) < file.read_text().count("\n#") / 1.5


def test_nothing_is_written_over_and_nothing_wrong_is_written(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    with pytest.raises(InvalidInventory, match="Clicks and more"):
        init(request(file, cluster="Clicks and more"))
    assert not file.exists()
    file.write_text("mine")
    with pytest.raises(InventoryExists, match="was not touched"):
        init(request(file))
    assert file.read_text() == "mine"
    with pytest.raises(UnwritableDirectory, match="cannot be written"):
        init(request(tmp_path / "not" / "there" / "inventory.yml"))


def test_remarks_on_what_is_valid_and_yet_worth_a_thought(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    top = f"cluster: c\ncontroller: {{host: c1}}\nssh: {{known_hosts: {file}}}\nworkers:\n"
    file.write_text(f"{top}  - host: w1\n    rack: r1\n  - host: w2\n    rack: r2\n")
    assert validate(file).remarks == ()
    file.write_text(f"{top}  - host: w1\n    ssh: {{identity: /not/there}}\n")
    lone, missing = validate(file).remarks
    assert "one worker" in lone
    assert "/not/there" in missing
    file.write_text(f"{top}  - host: w1\n  - host: w2\n    rack: r2\n")
    assert "w1 has no rack" in validate(file).remarks[0]
