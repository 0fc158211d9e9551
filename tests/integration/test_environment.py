"""The archive of this very installation: built once, run with nothing else, and put on a host."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from rhino_agent.settings import AgentSettings, settings_bytes
from rhinoctl import errors
from rhinoctl.config.inventory import Ssh
from rhinoctl.ids import WorkerId
from rhinoctl.ops.hosts import way_to
from rhinoctl.remote.environment import Environment, build_environment
from rhinoctl.remote.facts import ask_facts
from rhinoctl.remote.host import Command, checked, write_file
from rhinoctl.remote.packages import platform_of, python_of, this_platform
from rhinoctl.remote.releases import install_environment, installed, switch
from rhinoctl.remote.services import Kind, Service, choose_kind, keeper_of
from rhinoctl.remote.ssh import Login, SshHost
from tests.fakes.local_host import LocalHost
from tests.integration.real_hosts import RealHost, make_key, needed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # packs and unpacks 270 MB

OPT = "/opt/rhinoctl"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return build_environment(this_platform(), tmp_path_factory.mktemp("cache"), print)


def test_a_second_build_packs_nothing(made: Environment) -> None:
    said: list[str] = []
    assert build_environment(this_platform(), made.archive.parent, said.append) == made
    assert said == []
    assert made.size < 200 << 20


def test_commands_and_the_agent_run_from_it_and_from_nothing_else(
    made: Environment, tmp_path: Path
) -> None:
    """In an empty directory and an empty environment, without what the interpreter has."""
    plain = f"{sys.base_prefix}/bin/python3"
    opt = tmp_path / "opt"
    install_environment(LocalHost(), made, str(opt), python=plain, root=False)
    switch(LocalHost(), made.name, str(opt), root=False)
    (tmp_path / "empty").mkdir()

    def run(*argv: str) -> "subprocess.CompletedProcess[str]":
        environ = {"RHINO_PYTHON": plain, "PATH": "/usr/bin:/bin"}
        command = ["sh", f"{opt}/current/run", *argv]
        where = tmp_path / "empty"
        return subprocess.run(command, cwd=where, env=environ, capture_output=True, text=True)

    assert "rhinoctl  0.1.0" in run("rhinoctl.cli", "version").stdout
    assert run("rhinoctl.cli", "init", "--help").returncode == 0
    refused = run("rhino_agent", "/not-there")
    assert refused.returncode == errors.NotRunning.exit_code
    assert "not-running" in refused.stderr
    names = "rhinoctl rhino_agent rhinoctl_data.templates numpy pyarrow.flight rocksdict blake3"
    names += " cryptography fabric fastapi uvicorn pydantic xxhash rhinoctl.control.__main__"
    code = f"import sys, {names.replace(' ', ', ')}\n"
    code += "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)))"
    release = (opt / "current").resolve()
    done = subprocess.run(
        [plain, "-S", "-P", "-c", code],
        env={"PYTHONPATH": f"{release}/site"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    standard = str(Path(os.__file__).parent)
    elsewhere = [
        file
        for file in done.stdout.split()
        if not file.startswith(str(release))
        and (not file.startswith(standard) or "site-packages" in file)
    ]
    assert elsewhere == []


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RealHost]:
    needed()
    key = make_key(tmp_path / "key")
    host = RealHost(tmp_path / "w1")
    host.admit(key.with_suffix(".pub"))
    host.start()
    (tmp_path / "known_hosts").write_text(host.known())
    yield host
    host.stop()


@pytest.fixture
def there(host: RealHost, tmp_path: Path) -> Iterator[SshHost]:
    options = {"user": "root", "port": host.port, "identity": str(tmp_path / "key")}
    options["known_hosts"] = str(tmp_path / "known_hosts")
    ssh = SshHost("w1", way_to(host.address, Ssh.model_validate(options)), Login())
    yield ssh
    ssh.close()


def test_an_agent_is_put_on_a_host_over_ssh_and_outlives_the_connection(
    made: Environment, host: RealHost, there: SshHost, tmp_path: Path
) -> None:
    facts = ask_facts(there, [], [])
    assert facts.home == "/root"
    python = python_of(facts)[1]
    environment = build_environment(platform_of(facts), made.archive.parent, print)
    _lose_the_connection_once_it_unpacks(environment, host, there, python)
    assert installed(there, OPT, root=False).releases == ()
    assert install_environment(there, environment, OPT, python=python, root=False)
    assert not install_environment(there, environment, OPT, python=python, root=False)
    switch(there, environment.name, OPT, root=False)
    service = _agent(there, python)
    assert choose_kind(facts, sudo=False) is Kind.SUPERVISED  # a namespace has no systemd
    keeper = keeper_of(there, facts, sudo=False)
    try:
        assert keeper.define(service)
        first = keeper.start(service)
        until = time.monotonic() + 30
        while not any("agent-started" in line for line in keeper.logs(service).lines):
            assert time.monotonic() < until, keeper.logs(service)
            time.sleep(0.1)
        there.close()
        assert keeper.start(service) == first
        assert first.pid in host.pids()
        keeper.remove(service, 20)
    finally:
        there.close()
    for pid in host.pids():
        assert b"rhino" not in Path(f"/proc/{pid}/environ").read_bytes().lower()
    assert sorted(path.name for path in (host.directory / "varlib/rhino").iterdir()) == [
        "agent.json",
        "disk",
        "token",
    ]


def _lose_the_connection_once_it_unpacks(
    environment: Environment, host: RealHost, there: SshHost, python: str
) -> None:
    def cut() -> None:
        until = time.monotonic() + 30
        while not list((host.directory / "opt").glob("rhinoctl/versions/.new-*/site/*")):
            assert time.monotonic() < until
            time.sleep(0.01)
        host.stop()

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(errors.HostLost):
        install_environment(there, environment, OPT, python=python, root=False)
    cutting.join()
    host.start()


def _agent(there: SshHost, python: str) -> Service:
    settings = AgentSettings(
        cluster="c",
        worker=WorkerId("w1"),
        disk="/var/lib/rhino/disk",
        run="/var/lib/rhino/disk",
        listen="grpc+unix:///var/lib/rhino/disk/agent.sock",
        token_file="/var/lib/rhino/token",
        cache_bytes=1 << 20,
        buffer_bytes=1 << 20,
    )
    checked(there, Command(argv=("mkdir", "-p", "/var/lib/rhino"), what="make a directory"))
    for name, content in (("agent.json", settings_bytes(settings)), ("token", b"secret\n")):
        write_file(there, PurePosixPath("/var/lib/rhino", name), content, 0o600, root=False)
    return Service(
        name="rhinoctl-c-agent",
        module="rhino_agent",
        settings="/var/lib/rhino/agent.json",
        install_dir=OPT,
        run_dir="/var/lib/rhino",
        python=python,
        user="root",
    )
