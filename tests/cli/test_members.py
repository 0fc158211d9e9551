"""`hosts add` and `hosts remove` where a controller answers, and hosts cannot be reached."""

import json
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.config.clusters import ClusterHome, Member
from rhinoctl.errors import Exit
from rhinoctl.protocol import codec, views
from tests.fakes.controller import TOKEN, FakeController, status, worker

TEXT = """\
cluster: clicks
ssh: {{user: spark, known_hosts: {known}, connect_s: 2}}
controller: {{host: c.invalid}}
workers:
  - host: w1.invalid
    name: w1
  - host: w2.invalid  # old
    name: w2
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    file = tmp_path / "inventory.yml"
    file.write_text(TEXT.format(known=tmp_path / "known"))
    return file


@pytest.fixture
def home(tmp_path: Path, inventory: Path, controller: FakeController) -> ClusterHome:
    """A cluster that was deployed from here, with the operator's access to its controller."""
    made = ClusterHome(tmp_path / "state/rhinoctl/clusters/clicks", "clicks")
    with made.claimed():
        made.make()
    for name in ("w1", "w2"):
        made.join(name, Member(host=f"{name}.invalid", machine=name))
    (made.directory / "token").write_text(TOKEN)
    location = {"controller": controller.address, "token_file": "token"}
    (made.directory / "cluster.json").write_bytes(codec.dumps(location))
    controller.answers["GET", "/v1/status"] = status(jobs=())
    controller.answers["POST", "/v1/drain"] = views.OperationList(operations=())
    return made


def test_a_worker_in_use_is_refused_with_what_to_type(
    run: Any, inventory: Path, home: ClusterHome, controller: FakeController
) -> None:
    controller.answers["GET", "/v1/status"] = status()
    ended = run("hosts", "remove", "w2", "--yes", "-i", str(inventory), "--json")
    assert ended.exit_code == Exit.REFUSED
    error = json.loads(ended.stdout)["error"]
    assert error["code"] == "worker-in-use"
    assert "rhinoctl drain w2" in error["remedy"]


def test_leaving_is_shown_and_asked_about_and_does_not_hang_in_cron(
    run: Any, inventory: Path, home: ClusterHome, controller: FakeController
) -> None:
    ended = run("hosts", "remove", "w2", "--dry-run", "-i", str(inventory))
    assert ended.exit_code == Exit.HAS_CHANGES
    assert "  - host: w2.invalid  # old\n    name: w2" in ended.stdout
    ended = run("hosts", "remove", "w2", "-i", str(inventory))
    assert ended.exit_code == Exit.USAGE
    assert "no terminal" in ended.stderr
    assert {path for _, path, _ in controller.asked} == {"/v1/status"}


def test_one_whose_host_is_away_stays_in_the_inventory(
    run: Any, inventory: Path, home: ClusterHome, controller: FakeController
) -> None:
    before = inventory.read_text()
    ended = run("hosts", "remove", "w2", "--yes", "-i", str(inventory))
    assert ended.exit_code == Exit.PARTIAL
    assert "host-unreachable" in ended.stdout
    assert "--lost" in ended.stdout
    assert inventory.read_text() == before
    assert set(home.members()) == {"w1", "w2"}
    drains = [body for method, path, body in controller.asked if path == "/v1/drain"]
    assert [(each["worker"], each.get("undo", False)) for each in drains] == [("w2", False)]


def test_a_lost_one_is_let_go_and_stays_in_the_inventory_until_the_controller_knows(
    run: Any, inventory: Path, home: ClusterHome, controller: FakeController
) -> None:
    down = worker(2, health=views.Health.DOWN)
    controller.answers["GET", "/v1/status"] = status(workers=(worker(1), down), jobs=())
    before = inventory.read_text()
    ended = run("hosts", "remove", "w2", "--lost", "--yes", "-i", str(inventory), "--json")
    assert ended.exit_code == Exit.PARTIAL
    view = json.loads(ended.stdout)
    assert [host["host"] for host in view["deployment"]["hosts"]] == ["controller"]
    assert (view["undeployed"], view["written"]) == (None, False)
    assert inventory.read_text() == before
    assert set(home.members()) == {"w1"}


def test_who_cannot_be_reached_does_not_join(run: Any, inventory: Path, home: ClusterHome) -> None:
    before = inventory.read_text()
    ended = run("hosts", "add", "w3.invalid", "--yes", "-i", str(inventory), "--json")
    assert ended.exit_code == Exit.PARTIAL
    assert json.loads(ended.stdout)["error"]["code"] == "host-unreachable"
    ended = run("hosts", "add", "w3.invalid", "--rack", "r2", "--dry-run", "-i", str(inventory))
    assert ended.exit_code == Exit.PARTIAL
    assert "  - host: w3.invalid\n    rack: r2" in ended.stdout
    ended = run("hosts", "add", "w3", "--slots", "0", "-i", str(inventory), "--json")
    assert ended.exit_code == Exit.REFUSED
    assert "slots" in json.loads(ended.stdout)["error"]["message"]
    assert inventory.read_text() == before
