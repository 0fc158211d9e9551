"""`init` and `config validate`: what a person reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.errors import Exit

GOOD = """\
cluster: clicks
ssh: {user: spark, known_hosts: inventory.yml}
limits: {memory_mb: 8192, cpus: 4}
controller: {host: c1, address: 10.0.0.1}
workers:
  - {host: w1, rack: r1, slots: 4, disks: [/data1/rhino, /data2/rhino]}
  - {host: w2, rack: r2, limits: {memory_mb: null}}
"""

BAD = """\
cluster: clicks
controler: {host: c1}
workers:
  - {host: w1, disk: /data}
  - {host: w1}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_valid_one(run: Any, golden: Any, here: Path) -> None:
    (here / "inventory.yml").write_text(GOOD)
    golden("config-validate", run("config", "validate"))
    golden("config-validate-json", run("config", "validate", "--json"))


def test_one_with_mistakes(run: Any, golden: Any, here: Path) -> None:
    (here / "inventory.yml").write_text(BAD)
    golden("config-validate-mistakes", run("config", "validate"))


def test_many_mistakes_fill_one_screen_and_are_all_in_json(run: Any, here: Path) -> None:
    (here / "inventory.yml").write_text(GOOD + "".join(f"key{n}: 1\n" for n in range(40)))
    text = run("config", "validate").transcript()
    assert ("key0" in text, "key39" in text, "10 more" in text) == (True, False, True)
    error = json.loads(run("config", "validate", "--json").stdout)["error"]
    assert error["code"] == "invalid-inventory"
    last = len(GOOD.splitlines())
    assert [(m["line"] - last, m["what"].split("`")[1]) for m in error["mistakes"]] == [
        (n + 1, f"key{n}") for n in range(40)
    ]


def test_none(run: Any, golden: Any) -> None:
    golden("config-validate-none", run("config", "validate", "-i", "other.yml"))


def test_the_file_is_named_as_for_init_or_as_for_other_commands(run: Any, here: Path) -> None:
    (here / "other.yml").write_text(GOOD)
    shown = [
        run("config", "validate", *named).stdout
        for named in (["other.yml"], ["-i", "other.yml"], ["other.yml", "-i", "other.yml"])
    ]
    assert "other.yml" in shown[0]
    assert shown.count(shown[0]) == 3
    assert run("config", "validate", "other.yml", "-i", "more.yml").exit_code == Exit.USAGE


def test_init(run: Any, golden: Any, here: Path) -> None:
    (here / "known").touch()
    hosts = ("--controller", "c1", "--worker", "w1", "--worker", "w2")
    done = run("init", "--name", "clicks", *hosts)
    assert done.exit_code == Exit.DONE
    golden("init-again", run("init", "--name", "clicks", *hosts))
