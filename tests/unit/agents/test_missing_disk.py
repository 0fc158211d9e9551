"""A disk that is not mounted is not filled anew by the process that is started over it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rhino_agent import __main__ as agent
from rhino_agent.settings import AgentSettings
from rhinoctl.config.deployment import Role
from rhinoctl.control import __main__ as controller
from rhinoctl.control.settings import ControllerSettings
from rhinoctl.errors import DiskNotMounted, Exit
from rhinoctl.ops.endings import problem_in
from rhinoctl.ops.processes import Process
from rhinoctl.protocol import codec
from rhinoctl.remote.services import Service
from rhinoctl.remote.supervised import ServiceState
from tests.fakes.facts import host

TLS = {"ca": "ca", "certificate": "certificate", "key": "key"}


def agent_file(directory: Path, **changes: object) -> Path:
    settings = {
        "cluster": "c",
        "worker": "w1",
        "disk": str(directory / "mount/worker"),
        "run": str(directory),
        "listen": "grpc+tls://127.0.0.1:1",
        "token_file": str(directory / "token"),
        "cache_bytes": 1,
        "buffer_bytes": 1,
        "tls": TLS,
        **changes,
    }
    path = directory / "settings.json"
    path.write_text(json.dumps(settings))
    return path


def controller_file(directory: Path, **changes: object) -> Path:
    settings = {
        "cluster": "c",
        "store": str(directory / "mount/controller/controller.db"),
        "listen": "https://127.0.0.1:1",
        "token_file": str(directory / "token"),
        "workers": {},
        "tls": TLS,
        **changes,
    }
    path = directory / "settings.json"
    path.write_text(json.dumps(settings))
    return path


def ends_over_a_missing_disk(
    main: Callable[[list[str]], int], path: Path, caplog: pytest.LogCaptureFixture
) -> str:
    with caplog.at_level(logging.INFO):
        assert main([str(path)]) == Exit.PARTIAL
    problem = problem_in(f"2026-01-01 {caplog.records[-1].getMessage()}")
    assert problem is not None
    assert problem.code == DiskNotMounted.code
    assert "mount" in problem.remedy
    return problem.message


def test_a_deployed_agent_does_not_make_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = ends_over_a_missing_disk(agent.main, agent_file(tmp_path), caplog)
    assert str(tmp_path / "mount/worker") in message
    assert not (tmp_path / "mount").exists()


def test_a_deployed_controller_does_not_make_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = ends_over_a_missing_disk(controller.main, controller_file(tmp_path), caplog)
    assert str(tmp_path / "mount/controller") in message
    assert not (tmp_path / "mount").exists()


def test_a_further_disk_that_was_deployed_is_not_made(tmp_path: Path) -> None:
    path = agent_file(tmp_path, disks=[str(tmp_path / "second")])
    settings = codec.loads(AgentSettings, path.read_bytes())
    with pytest.raises(DiskNotMounted, match="second"):
        agent.open_disk(settings, str(tmp_path / "second"), 2, fresh=True)
    assert not (tmp_path / "second").exists()
    added = agent.open_disk(settings, str(tmp_path / "third"), 3, fresh=True)
    assert Path(added.root).is_dir()


def test_what_a_process_has_told_is_what_is_said_of_it() -> None:
    service = Service(
        name="s", module="m", settings="s", install_dir="/o", run_dir="/r", python="p", user="u"
    )
    process = Process(host="w1", role=Role.AGENT, service=service, facts=host(), sudo=False)
    line = (
        '12:00 refused problem={"code":"disk-not-mounted","message":"/d is gone","remedy":"mount"}'
    )
    fault = process.ended(ServiceState(running=False, kept=True, exit_code=8, last_line=line))
    assert "(exit code 8): /d is gone (disk-not-mounted)" in fault.message
    assert fault.remedy.startswith("mount;")
    fault = process.ended(
        ServiceState(running=False, kept=True, last_line="12:00 refused problem={")
    )
    assert fault.message.endswith("12:00 refused problem={")


def test_processes_of_a_local_cluster_make_their_directories(tmp_path: Path) -> None:
    own = codec.loads(AgentSettings, agent_file(tmp_path, tls=None).read_bytes())
    assert own.makes_directories
    store = codec.loads(ControllerSettings, controller_file(tmp_path, tls=None).read_bytes())
    assert store.makes_directories
