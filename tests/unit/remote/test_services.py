"""What is decided and written for services; that they run is shown by tests/integration."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.errors import CommandFailed
from rhinoctl.remote.host import Command, Done
from rhinoctl.remote.services import (
    NOTHING,
    Either,
    Kind,
    Service,
    Supervised,
    Systemd,
    choose_kind,
    enable_linger,
    journal,
    keeper_of,
    state_of,
    unit_text,
)
from rhinoctl.remote.supervised import Log, ServiceState
from rhinoctl.remote.supervisor import Definition, pause_s, rotate
from tests.fakes.facts import host

AGENT = Service(
    name="rhinoctl-c-agent",
    module="rhino_agent",
    settings="/var/lib/rhinoctl/agent.json",
    install_dir="/opt/rhinoctl",
    run_dir="/var/lib/rhinoctl",
    python="/usr/bin/python3.12",
    user="spark",
)


@pytest.mark.parametrize(
    ("sudo", "changes", "kind"),
    [
        (True, {}, Kind.SYSTEMD),
        (False, {"uid": 0}, Kind.SYSTEMD),
        (False, {"user_manager": True, "linger": True}, Kind.SYSTEMD_USER),
        (False, {"user_manager": True}, Kind.SUPERVISED),
        (False, {"linger": True}, Kind.SUPERVISED),
        (True, {"systemd": False}, Kind.SUPERVISED),
        (False, {"systemd": False, "user_manager": True, "linger": True}, Kind.SUPERVISED),
    ],
)
def test_the_kind_is_chosen_by_what_the_host_has(
    sudo: bool, changes: dict[str, Any], kind: Kind
) -> None:
    facts = host(**changes)
    assert choose_kind(facts, sudo=sudo) is kind
    keeper = keeper_of(Recorder({}), facts, sudo=sudo)
    assert isinstance(keeper, Either) == (
        facts.systemd and not sudo and facts.uid != 0 and facts.user_manager
    )
    if not isinstance(keeper, Either):
        assert isinstance(keeper, Supervised) == (kind is Kind.SUPERVISED)


class Stubbed:
    """This machine, with commands of a test's own before its own."""

    name = "w1"

    def __init__(self, directory: Path, **commands: str) -> None:
        for name, text in commands.items():
            (directory / name).write_text(f"#!/bin/sh\n{text}\n")
            (directory / name).chmod(0o755)
        self._env = {"PATH": f"{directory}:{os.environ['PATH']}"}

    def run(self, command: Command) -> Done:
        ended = subprocess.run(command.argv, capture_output=True, env=self._env, timeout=30)
        return Done(ended.returncode, ended.stdout, ended.stderr)

    def close(self) -> None: ...


def test_an_account_is_let_linger_or_told_why_not(tmp_path: Path) -> None:
    said = tmp_path / "said"
    common = {"id": "echo 4242424", "sleep": "exit 0"}
    enable_linger(Stubbed(tmp_path, loginctl=f'echo "$@" >{said}', **common), "spark")
    assert said.read_text() == "--no-ask-password enable-linger spark\n"
    refusing = Stubbed(tmp_path, loginctl="echo Access denied >&2; exit 1", **common)
    with pytest.raises(CommandFailed, match="Access denied") as raised:
        enable_linger(refusing, "spark")
    assert "sudo loginctl enable-linger spark" in raised.value.remedy


def lines_of(service: Service, *, user_unit: bool = False) -> list[str]:
    return unit_text(service, user_unit=user_unit).splitlines()


def test_a_unit_keeps_instances_alive_and_has_its_bounds() -> None:
    lines = lines_of(AGENT)
    assert {
        "User=spark",
        "KillMode=process",
        "Restart=always",
        "LimitNOFILE=1048576",
        "TimeoutStopSec=30",
        "WantedBy=multi-user.target",
        'Environment="RHINO_PYTHON=/usr/bin/python3.12"',
        "Environment=RHINO_SERVICE=rhinoctl-c-agent",
        "ExecStart=/bin/sh /opt/rhinoctl/current/run rhino_agent /var/lib/rhinoctl/agent.json",
    } <= set(lines)
    assert not [line for line in lines if line.startswith(("MemoryMax", "CPUQuota"))]
    bounded = lines_of(Service(**{**fields(AGENT), "memory_mb": 4096, "cpus": 1.5}))
    assert set(bounded) - set(lines) == {"MemoryMax=4096M", "CPUQuota=150%"}


def test_a_unit_of_the_account_names_no_user() -> None:
    lines = lines_of(AGENT, user_unit=True)
    assert "WantedBy=default.target" in lines
    assert not [line for line in lines if line.startswith("User=")]


def fields(service: Service) -> dict[str, Any]:
    return {name: getattr(service, name) for name in Service.__slots__}  # type: ignore[attr-defined]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_one_for_systemd_that_does_not_run_here(tmp_path: Path) -> None:
    """Its text only: no unit is started in any test."""
    unit = tmp_path / f"{AGENT.name}.service"
    unit.write_text(unit_text(AGENT, user_unit=False).replace("User=spark", "User=root"))
    argv = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    newer = ("RestartSteps", "RestartMaxDelaySec", "OOMPolicy")  # older ones do without
    left = [
        line
        for line in done.stderr.splitlines()
        if unit.name in line and not any(f"Unknown key '{name}'" in line for name in newer)
    ]
    assert left == []


class Recorder:
    """A host that answers commands by what they are for."""

    name = "w1"

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.ran: list[Command] = []

    def run(self, command: Command) -> Done:
        self.ran.append(command)
        return Done(0, self.answers.get(command.what, "").encode(), b"")

    def close(self) -> None: ...

    def changed(self) -> list[str]:
        return [command.what for command in self.ran if command.changes]


class Shelf:
    """A keeper (`Keeper`) that says how a service is, and notes what it is asked to do."""

    def __init__(self, state: ServiceState = NOTHING) -> None:
        self.kept = state
        self.did: list[str] = []

    def define(self, service: Service) -> bool:
        self.did.append("define")
        return True

    def start(self, service: Service) -> ServiceState:
        self.did.append("start")
        self.kept = RUNS
        return self.kept

    def stop(self, service: Service, patience_s: float) -> ServiceState:
        self.did.append("stop")
        self.kept = ENDED
        return self.kept

    def state(self, service: Service) -> ServiceState:
        return self.kept

    def logs(self, service: Service, lines: int = 100, after: str = "") -> Log:
        return Log(lines=(str(self.kept.pid),), cursor="")

    def remove(self, service: Service, patience_s: float) -> None:
        self.did.append("remove")
        self.kept = NOTHING


RUNS = ServiceState(running=True, kept=True, pid=7)
ENDED = ServiceState(running=False, kept=False, last_line="it is over")


def test_what_is_kept_the_other_way_is_found_and_left_alone() -> None:
    """An account that begins to linger has its services supervised still."""
    units, supervised = Shelf(), Shelf(RUNS)
    either = Either(units, supervised)
    assert either.state(AGENT) == RUNS
    assert either.logs(AGENT).lines == ("7",)
    assert either.start(AGENT) == RUNS
    assert (units.did, supervised.did) == ([], [])


def test_what_was_kept_the_other_way_is_kept_the_first_way_once_it_is_restarted() -> None:
    units, supervised = Shelf(), Shelf(RUNS)
    either = Either(units, supervised)
    either.stop(AGENT, 5)
    assert either.state(AGENT) == ENDED
    either.define(AGENT)
    assert either.start(AGENT) == RUNS
    assert (units.did, supervised.did) == (["define", "start"], ["stop", "remove"])
    either.remove(AGENT, 5)
    assert either.state(AGENT) == NOTHING


def test_without_anything_of_the_other_way_there_is_only_the_first() -> None:
    units, supervised = Shelf(), Shelf()
    either = Either(units, supervised)
    either.define(AGENT)
    either.start(AGENT)
    either.stop(AGENT, 5)
    assert either.state(AGENT) == ENDED
    assert (units.did, supervised.did) == (["define", "start", "stop"], [])


SHOWN = (
    "LoadState=loaded\nActiveState=active\nMainPID=7\nUnitFileState=enabled\nNow=100\nUptime=9\n"
)


def test_a_unit_that_is_as_it_should_be_is_left_alone_by_systemd_s_text_alone() -> None:
    """No systemd runs here: it is played by what it would say."""
    path = "/etc/systemd/system/rhinoctl-c-agent.service"
    text = unit_text(AGENT, user_unit=False)
    same = Recorder({f"read {path}": text, "look at rhinoctl-c-agent": SHOWN})
    keeper = Systemd(same, root=True)
    assert not keeper.define(AGENT)
    assert keeper.start(AGENT).pid == 7
    assert same.changed() == []
    assert all(command.root for command in same.ran)
    fresh = Recorder({})
    assert Systemd(fresh, root=True).define(AGENT)
    assert fresh.changed() == [
        "make /etc/systemd/system",
        f"write {path}",
        "reload the units",
        "enable rhinoctl-c-agent",
    ]


def test_a_unit_of_the_account_is_asked_for_of_its_own_systemd() -> None:
    there = Recorder({})
    Systemd(there, root=False, user_units="/home/s/.config/systemd/user", uid=7).start(AGENT)
    start = next(command for command in there.ran if command.what == "start rhinoctl-c-agent")
    assert start.argv[:4] == ("env", "XDG_RUNTIME_DIR=/run/user/7", "systemctl", "--user")
    assert not start.root


def test_what_systemd_says_of_a_unit() -> None:
    clocks = {"Now": "1000", "Uptime": "600.5", "LoadState": "loaded"}
    assert state_of({**clocks, "LoadState": "not-found"}) == NOTHING
    runs = {"ActiveState": "active", "MainPID": "7", "NRestarts": "2"}
    began = {"ExecMainStartTimestampMonotonic": "600000000"}
    assert state_of({**clocks, **runs, **began}) == ServiceState(
        running=True, kept=True, pid=7, since=999.5, restarts=2
    )
    ended = {"ActiveState": "activating", "MainPID": "0", "NRestarts": "3"}
    code = {"ExecMainCode": "1", "ExecMainStatus": "3"}
    found = state_of({**clocks, **ended, **code, "ExecMainExitTimestampMonotonic": "500500000"})
    assert found == ServiceState(running=False, kept=True, since=900.0, restarts=3, exit_code=3)
    killed = {"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}
    assert state_of({**clocks, **killed}).exit_code == -9


def test_the_journal_s_lines_and_where_it_goes_on() -> None:
    assert journal("a\nb\n-- cursor: s=1\n", "") == Log(lines=("a", "b"), cursor="s=1")
    assert journal("", "s=1") == Log(lines=(), cursor="s=1")
    assert journal("a\n", "") == Log(lines=("a",), cursor="")


def test_a_process_that_ends_at_once_is_started_ever_later_up_to_a_bound() -> None:
    assert [pause_s(failures) for failures in (0, 1, 2, 3, 5, 6, 99)] == [1, 1, 2, 4, 16, 30, 30]


def test_a_log_keeps_within_its_bound_while_the_process_writes_on(tmp_path: Path) -> None:
    kept = Definition(name="a", argv=(), directory=str(tmp_path), log_bytes=10)
    rotate(kept)
    with open(kept.log, "a", buffering=1) as process:
        process.write("short\n")
        rotate(kept)
        process.write("long enough\n")
        rotate(kept)
        process.write("next\n")
    assert kept.log.read_text() == "next\n"
    assert (tmp_path / "log.1").read_text() == "short\nlong enough\n"
    assert len(list(tmp_path.iterdir())) == 2
