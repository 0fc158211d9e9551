"""Fault points: what is ordered is done once, and nothing is there that was not asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rhinoctl.protocol import codec
from rhinoctl.wire.points import VARIABLE, Order, with_points


class Port:
    """A port with two methods."""

    def sync(self, paths: list[str]) -> None:
        """Nothing."""

    def send(self, to: str, message: object) -> int:
        """Nothing."""
        return 1


PROCESS = """
import sys
from rhinoctl.wire.points import with_points
from tests.unit.wire.test_points import Port
port = with_points(Port(), "p", ("sync",))
for number in range(5):
    print("before", number, flush=True)
    port.sync(["a/log/1", "b"])
    print("after", number, flush=True)
"""


def outcome(tmp_path: Path, order: Order | None) -> tuple[int, list[str]]:
    if order is not None:
        (tmp_path / "p").write_bytes(codec.dumps(order))
    root = Path(__file__).resolve().parents[3]
    paths = os.pathsep.join([str(root), *sys.path])
    environ = {**os.environ, VARIABLE: str(tmp_path), "PYTHONPATH": paths}
    ended = subprocess.run(
        [sys.executable, "-c", PROCESS], capture_output=True, text=True, env=environ, check=False
    )
    return ended.returncode, ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("order", "last"),
    [
        (Order(does="sync"), "before 0"),
        (Order(does="sync", skip=2), "before 2"),
        (Order(does="sync", holding="log/", after=True, skip=1), "before 1"),
    ],
)
def test_a_process_is_killed_at_its_step(tmp_path: Path, order: Order, last: str) -> None:
    code, lines = outcome(tmp_path, order)
    assert code == -signal.SIGKILL
    assert lines[-1] == last
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.done"]


@pytest.mark.parametrize(
    "order", [None, Order(does="send"), Order(does="sync", holding="x"), Order(does="sync", skip=5)]
)
def test_it_goes_on_if_the_step_does_not_come(tmp_path: Path, order: Order | None) -> None:
    code, lines = outcome(tmp_path, order)
    assert code == 0
    assert lines[-1] == "after 4"


def test_without_the_variable_a_port_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    port = Port()
    assert with_points(port, "p", ("send", "sync")) is port
    assert vars(port) == {}
