"""First contact over SSH, with a real sshd: one reason a host, in time, and nothing on trust."""

import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from rhinoctl import errors
from rhinoctl.config.inventory import Ssh, parse_inventory
from rhinoctl.ops.check import CheckView, HostState, apply, check, exit_of
from rhinoctl.ops.host_checks import Verdict
from rhinoctl.ops.hosts import fleet_of, way_to
from rhinoctl.remote.environment import write_archive
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Audit, Audited, Command, Host, Untouched, checked, write_file
from rhinoctl.remote.packages import Entry, this_platform
from rhinoctl.remote.releases import install_environment
from rhinoctl.remote.ssh import Login, SshHost
from rhinoctl.wire.secret import Secret
from tests.integration.hosts import Hosts
from tests.integration.real_hosts import PLAIN_UID, RealHost, free_port, make_key, needed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # needs root and sshd

PLAIN = Login()

Connect = Callable[..., SshHost]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed()
    return make_key(tmp_path_factory.mktemp("key") / "id")


@pytest.fixture
def host(tmp_path: Path, key: Path) -> Iterator[RealHost]:
    made = RealHost(tmp_path / "w1")
    made.admit(key.with_suffix(".pub"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def connect(tmp_path: Path, key: Path) -> Iterator[Connect]:
    known = tmp_path / "known_hosts"
    opened: list[SshHost] = []

    def to(
        host: RealHost, *, met: bool = True, login: Login = PLAIN, jump: SshHost | None = None,
        **more: object,
    ) -> SshHost:  # fmt: skip
        if met:
            known.write_text(host.known())
        options = {"user": "root", "port": host.port, "identity": str(key), "connect_s": 3.0}
        options |= {"known_hosts": str(known), **more}
        opened.append(SshHost("w1", way_to(host.address, Ssh.model_validate(options)), login, jump))
        return opened[-1]

    yield to
    for each in opened:
        each.close()


def run(host: SshHost | Audited | Untouched, *argv: str, **more: object) -> str:
    return checked(host, Command(argv=argv, what="try", **more)).text  # type: ignore[arg-type]


def test_a_command_s_arguments_input_and_end_arrive_as_they_are(
    host: RealHost, connect: Connect
) -> None:
    there = connect(host)
    odd = ["a b", "$HOME", "`id`", "'", '"', "\\", "*", "", "ü\n!"]
    assert run(there, "printf", "%s|", *odd) == "".join(f"{each}|" for each in odd)
    assert run(there, "hostname") == "w1\n"
    blob = bytes(range(256)) * 8192
    done = there.run(Command(argv=("cat",), what="echo", input=blob))
    assert done.stdout == blob
    done = there.run(Command(argv=("sh", "-c", "echo out; echo err >&2; exit 7"), what="end"))
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert there.run(Command(argv=("head", "-c1"), what="look", input=blob)).stdout == b"\0"
    with pytest.raises(errors.CommandFailed, match=r"w1: try: .*not-there.*exit code"):
        run(there, "ls", "/not-there")


def test_a_command_that_does_not_end_is_ended_there(host: RealHost, connect: Connect) -> None:
    there = connect(host)
    with pytest.raises(errors.CommandTimeout, match=r"not within 0\.5 s") as raised:
        run(there, "sleep", "61", timeout_s=0.5, longer="--timeout")
    assert "--timeout gives it longer" in raised.value.remedy
    with pytest.raises(errors.CommandTimeout) as raised:
        run(connect(host, command_s=0.5), "sleep", "61")
    assert "`ssh.command_s` of the inventory gives it longer" in raised.value.remedy
    for pid in host.pids():
        assert b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert run(there, "echo", "on") == "on\n"


def test_files_are_written_whole_with_their_mode(host: RealHost, connect: Connect) -> None:
    there, path = connect(host), PurePosixPath("/opt/a file")
    for content in (b"one\0", b"x" * 3_000_000):
        write_file(there, path, content, 0o640, root=False)
        on_host = host.directory / "opt/a file"
        assert on_host.read_bytes() == content
        assert on_host.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in (host.directory / "opt").iterdir()] == ["a file"]
    with pytest.raises(errors.CommandFailed, match="write /not/there"):
        write_file(there, PurePosixPath("/not/there/file"), b"", 0o600, root=False)


def test_a_host_that_was_never_met_is_refused_unless_a_person_says_otherwise(
    host: RealHost, connect: Connect, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(errors.HostKeyUnknown, match=r"ssh-ed25519 SHA256:"):
        connect(host, met=False).connect()
    assert not (tmp_path / "known_hosts").exists()
    accepting = Login(accept_new=True, tell=said.append)
    connect(host, met=False, login=accepting).connect()
    assert len(said) == 1
    assert (tmp_path / "known_hosts").read_text() == host.known()
    connect(host, met=False).connect()


def test_a_host_whose_key_has_changed_is_refused_whatever_is_said(
    host: RealHost, connect: Connect, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other")
    kind, key, *_ = other.with_suffix(".pub").read_text().split()
    line = f"[{host.address}]:{host.port} {kind} {key}\n"
    (tmp_path / "known_hosts").write_text(line)
    for login in (Login(), Login(accept_new=True)):
        with pytest.raises(errors.HostKeyChanged, match="not the one that is known"):
            connect(host, met=False, login=login).connect()
    assert (tmp_path / "known_hosts").read_text() == line


@pytest.mark.parametrize("wrong", ["user", "key", "no such key"])
def test_who_is_not_let_in_is_told_so(
    host: RealHost, connect: Connect, tmp_path: Path, wrong: str
) -> None:
    more = {
        "user": {"user": "nobody-here"},
        "key": {"identity": str(make_key(tmp_path / "mine"))},
        "no such key": {"identity": str(tmp_path / "none")},
    }[wrong]
    with pytest.raises(errors.LoginRefused, match=r"does not let us in|is not there") as raised:
        connect(host, **more).connect()
    assert "\n" not in raised.value.message


IDENTITIES = {
    "garbage": ("is no private key", "ssh.identity", {}),
    "binary": ("is no private key", "ssh.identity", {}),
    "the public half": ("is no private key", "ssh.identity", {}),
    "a directory's": ("is not there", "ssh.identity", {}),
    "locked": ("has a passphrase", "RHINO_SSH_PASSPHRASE", {}),
    "locked, a password given": ("has a passphrase", "RHINO_SSH_PASSPHRASE", {"password": "x"}),
    "wrongly unlocked": ("does not open the identity", "RHINO_SSH_PASSPHRASE", {"passphrase": "x"}),
}


@pytest.mark.parametrize("what", IDENTITIES)
def test_an_identity_that_cannot_be_used_is_the_reason_and_not_the_host(
    host: RealHost, connect: Connect, tmp_path: Path, key: Path, what: str
) -> None:
    said, helps, given = IDENTITIES[what]
    file = tmp_path / "mine"
    if "locked" in what:
        file.write_bytes(key.read_bytes())
        file.chmod(0o600)
        argv = ["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", str(file)]
        subprocess.run(argv, check=True)
    else:
        file.write_bytes({"binary": bytes(range(256))}.get(what, b"garbage\n"))
    if what == "the public half":
        file = key.with_suffix(".pub")
    elif what == "a directory's":
        file = tmp_path
    login = Login(**{name: Secret(value) for name, value in given.items()})
    with pytest.raises(errors.LoginRefused, match=said) as raised:
        connect(host, identity=str(file), login=login).connect()
    assert str(file) in raised.value.message
    assert helps in raised.value.remedy
    assert raised.value.message.startswith("w1: ")
    if "locked" in what:
        login = Login(passphrase=Secret("open sesame"))
        assert run(connect(host, identity=str(file), login=login), "hostname") == "w1\n"


def test_what_is_to_be_typed_names_the_host_and_the_file(
    host: RealHost, connect: Connect, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    (tmp_path / "known_hosts").write_text(f"[{host.address}]:{host.port} {other}")
    with pytest.raises(errors.HostKeyChanged) as raised:
        connect(host, met=False).connect()
    command = raised.value.remedy.split("`")[1]
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    with pytest.raises(errors.HostKeyUnknown):
        connect(host, met=False).connect()


def test_a_host_that_refuses_or_says_nothing_is_given_up_in_time(
    tmp_path: Path, connect: Connect
) -> None:
    needed()
    gone = RealHost(tmp_path / "gone")
    with pytest.raises(errors.HostUnreachable, match="Connection refused"):
        connect(gone).connect()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gone.port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(errors.HostUnreachable):
            connect(gone, connect_s=0.5).connect()
        assert time.monotonic() - began < 10
    gone.address = "no-such-host.invalid"
    with pytest.raises(errors.HostUnreachable, match="has no address"):
        connect(gone).connect()


RC = {
    "prints": ("echo welcome; echo oh >&2\n", None),
    "returns": ("return\n", None),
    "ends": ("echo go away; exit 0\n", errors.LoginShellEnded),
    "hangs": ("sleep 61\n", errors.CommandTimeout),
}


@pytest.mark.parametrize("what", RC)
def test_start_up_files_of_the_login_shell(host: RealHost, connect: Connect, what: str) -> None:
    text, fault = RC[what]
    (host.home / ".bashrc").write_text(text)
    there = connect(host, connect_s=1.0, command_s=0.5)
    if fault is None:
        assert run(there, "echo", "on") == "on\n"
        return
    with pytest.raises(fault):
        run(there, "echo", "on")


def test_an_account_without_a_home_is_not_told_to_see_its_start_up_files(
    host: RealHost, connect: Connect
) -> None:
    no_home = "Could not chdir to home directory /nonexistent: No such file or directory"
    not_available = "This account is currently not available."
    lines = f"echo '{no_home}' >&2; echo '{not_available}'; exit 1\n"
    (host.home / ".bashrc").write_text(lines)
    with pytest.raises(errors.LoginShellEnded) as fault:
        run(connect(host), "true")
    assert no_home in fault.value.message
    assert not_available in fault.value.message
    assert "ssh.user" in fault.value.remedy
    assert ".bashrc" not in fault.value.remedy


def test_a_host_that_goes_away_in_the_middle(host: RealHost, connect: Connect) -> None:
    there = connect(host)
    assert run(there, "true") == ""
    with pytest.raises(errors.HostLost, match="ended while it was to try"):
        run(there, "sh", "-c", "kill -9 $(ps -o ppid= -p $PPID) $PPID; sleep 5")
    host.stop()
    with pytest.raises(errors.HostUnreachable):
        run(there, "true")
    host.start()
    assert run(there, "echo", "on") == "on\n"


def test_a_host_that_falls_silent_in_the_middle_is_lost_long_before_the_command_s_time(
    connect: Connect, tmp_path: Path, key: Path
) -> None:
    net = Hosts(1)
    name = net.names[0]
    cut_off = RealHost(
        tmp_path / "w1", address=net.address(name), enter=("ip", "netns", "exec", name)
    )
    cut_off.admit(key.with_suffix(".pub"))
    try:
        cut_off.start()
        there = connect(cut_off)
        assert run(there, "hostname") == "w1\n"
        cutting = threading.Thread(target=_cut_while_it_sleeps, args=(net, cut_off))
        cutting.start()
        began = time.monotonic()
        with pytest.raises(errors.HostLost):
            run(there, "sleep", "600", timeout_s=600.0)
        assert time.monotonic() - began < 30
        cutting.join()
    finally:
        cut_off.stop()
        net.close()


def test_a_host_that_is_cut_off_from_its_jump_host_is_given_up_in_time(
    host: RealHost, connect: Connect, tmp_path: Path
) -> None:
    net = Hosts(1)
    try:
        net.cut(net.names[0])
        far = RealHost(tmp_path / "far", address=net.address(net.names[0]), enter=("true",))
        jump = connect(host)
        began = time.monotonic()
        with pytest.raises(errors.HostUnreachable, match="jump host"):
            connect(far, jump=jump, met=False, connect_s=1.0).connect()
        assert time.monotonic() - began < 10
    finally:
        net.close()


def test_an_upload_that_lost_its_network_does_not_keep_the_next_one_out(
    connect: Connect, tmp_path: Path, key: Path
) -> None:
    entries = [Entry("site/blob", os.urandom(20_000_000)), Entry("run", b"", executable=True)]
    made = write_archive(entries, this_platform(), tmp_path / "cache", lambda said: None)
    net = Hosts(1)
    (name,) = net.names
    cut_off = RealHost(
        tmp_path / "w1", address=net.address(name), enter=("ip", "netns", "exec", name)
    )
    cut_off.admit(key.with_suffix(".pub"))

    def install() -> bool:
        there = connect(cut_off)
        return install_environment(there, made, "/opt/r", python="python3", root=False)

    try:
        cut_off.start()
        net.slow(name, 20)
        cutting = threading.Timer(3.0, net.cut, [name])
        cutting.start()
        with pytest.raises(errors.HostLost):
            install()
        net.slow(name, 0)
        net.mend(name)
        began = time.monotonic()
        assert install()
        assert time.monotonic() - began < 30
    finally:
        cut_off.stop()
        net.close()
    assert [each.name for each in (cut_off.directory / "opt/r/versions").iterdir()] == [made.name]


def _cut_while_it_sleeps(net: Hosts, host: RealHost) -> None:
    def sleeps() -> bool:
        return any(b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.pids())

    until = time.monotonic() + 10
    while not sleeps():
        assert time.monotonic() < until
        time.sleep(0.02)
    net.cut(net.names[0])


def test_through_a_jump_host(host: RealHost, connect: Connect, tmp_path: Path, key: Path) -> None:
    behind = RealHost(tmp_path / "w2")
    behind.admit(key.with_suffix(".pub"))
    behind.start()
    try:
        jump = connect(host)
        there = connect(behind, jump=jump, met=False)
        with open(tmp_path / "known_hosts", "a", encoding="utf-8") as known:
            known.write(behind.known())
        assert run(there, "hostname") == "w2\n"
        closed = RealHost(tmp_path / "w3")
        with pytest.raises(errors.HostUnreachable, match="its jump host cannot connect there"):
            connect(closed, jump=jump, met=False).connect()
        (tmp_path / "known_hosts").write_text(behind.known())
        with pytest.raises(errors.JumpFailed, match="host key"):
            connect(behind, jump=connect(host, met=False), met=False).connect()
    finally:
        behind.stop()


def behind_one_jump(jump: RealHost, far: RealHost, directory: Path, key: Path) -> Fleet[Host]:
    """Eight addresses of a host behind a jump host, as the hosts of an inventory."""
    addresses = [f"127.0.1.{number}" for number in range(1, 9)]
    known = directory / "known_hosts"
    lines = [far.known().replace(far.address, each) for each in addresses]
    known.write_text(jump.known() + "".join(lines))
    inventory, mistakes = parse_inventory(
        f"cluster: c\nssh: {{user: root, identity: {key}, known_hosts: {known}, port: {far.port},"
        f" connect_s: 2, jump: {jump.address}, jump_port: {jump.port}}}\n"
        f"controller: {{host: {addresses[0]}}}\nworkers:\n"
        + "".join(f"  - {{host: {each}}}\n" for each in addresses[1:])
    )
    assert inventory is not None, mistakes
    return fleet_of(inventory, PLAIN)


@pytest.mark.parametrize("attempt", range(3))
def test_many_hosts_behind_one_jump_host_are_reached_at_once(
    host: RealHost, tmp_path: Path, key: Path, attempt: int
) -> None:
    far = RealHost(tmp_path / "far", address="0.0.0.0")
    far.admit(key.with_suffix(".pub"))
    far.start()
    try:
        with behind_one_jump(host, far, tmp_path, key) as fleet:
            found = fleet.each(lambda each: run(each, "hostname"))
    finally:
        far.stop()
    assert set(found.values()) == {"far\n"}
    log = (host.directory / "sshd.log").read_text()
    assert log.count("Accepted publickey") == 1, "they share one connection to it"


def test_a_jump_host_that_fails_is_the_reason_of_each_host_behind_it_and_is_waited_for_once(
    host: RealHost, tmp_path: Path, key: Path
) -> None:
    far = RealHost(tmp_path / "far", address="0.0.0.0")
    with socket.create_server((host.address, 0)) as silent:
        host.stop()
        host.port = silent.getsockname()[1]
        began = time.monotonic()
        with behind_one_jump(host, far, tmp_path, key) as fleet:
            found = fleet.each(lambda each: run(each, "hostname"))
    assert time.monotonic() - began < 6
    for name, fault in found.items():
        assert isinstance(fault, errors.JumpFailed)
        assert fault.message.startswith(f"{name}: its jump host does not let us through:")
        assert f"port {host.port}: no greeting within 2 s" in fault.message


def test_an_inventory_s_hosts_are_reached_as_it_says(
    host: RealHost, tmp_path: Path, key: Path
) -> None:
    behind = RealHost(tmp_path / "w2", address="127.0.0.2")
    behind.admit(key.with_suffix(".pub"))
    behind.start()
    known = tmp_path / "known_hosts"
    known.write_text(host.known() + behind.known())
    jump = f"jump: {host.address}, jump_port: {host.port}, sessions: 1"
    inventory, mistakes = parse_inventory(
        f"cluster: c\nssh: {{user: root, identity: {key}, known_hosts: {known}}}\n"
        f"controller: {{host: {host.address}, ssh: {{port: {host.port}}}}}\n"
        f"workers:\n  - host: {behind.address}\n    ssh: {{port: {behind.port}, {jump}}}\n"
        f"  - host: localhost\n    ssh: {{port: {behind.port}, {jump}}}\n"
    )
    assert inventory is not None, mistakes
    try:
        with fleet_of(inventory, PLAIN) as fleet:
            found = fleet.each(lambda each: run(each, "hostname"))
    finally:
        behind.stop()
    assert found.pop("controller") == "w1\n"
    assert found.pop("127.0.0.2") == "w2\n"
    assert isinstance(found.pop("localhost"), errors.HostUnreachable)
    assert not found


def test_many_at_once_each_with_its_own_outcome(host: RealHost, connect: Connect) -> None:
    fine, wrong = connect(host), connect(host, user="nobody-here")
    with Fleet({"b": fine, "a": wrong}, {}) as fleet:
        found = fleet.each(lambda each: run(each, "hostname"))
    assert list(found) == ["b", "a"]
    assert found["b"] == "w1\n"
    assert isinstance(found["a"], errors.LoginRefused)


def test_what_is_run_is_written_down_and_a_dry_run_changes_nothing(
    host: RealHost, connect: Connect
) -> None:
    kept: list[Audit] = []
    told: list[tuple[str, Command]] = []
    there = Audited(connect(host), kept.append)
    write_file(there, PurePosixPath("/opt/token"), b"secret", 0o600, root=False)
    with pytest.raises(errors.CommandTimeout):
        run(there, "sleep", "9", timeout_s=0.2)
    assert [(each.host, each.changes, each.exit_code) for each in kept] == [
        ("w1", True, 0),
        ("w1", False, None),
    ]
    assert "secret" not in repr(kept)
    assert "not within" in kept[1].fault
    dry = Untouched(there, lambda name, command: told.append((name, command)))
    write_file(dry, PurePosixPath("/opt/other"), b"", 0o600, root=False)
    assert run(dry, "ls", "/opt") == "token\n"
    assert [(name, command.what) for name, command in told] == [("w1", "write /opt/other")]


def test_hosts_are_checked_over_ssh_and_left_as_they_were(
    host: RealHost, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host is fine, one is the same machine under another name with a port that is taken and a
    file in the place of a directory, one does not answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    twin = RealHost(tmp_path / "w2", address="127.0.0.2")
    (twin.directory / "machine-id").write_text((host.directory / "machine-id").read_text())
    twin.admit(key.with_suffix(".pub"))
    twin.start()
    (twin.directory / "varlib/rhinoctl").mkdir()
    (twin.directory / "varlib/rhinoctl/worker").touch()
    known = tmp_path / "known_hosts"
    known.write_text(host.known() + twin.known())
    somebody = socket.create_server((twin.address, 0))
    taken = somebody.getsockname()[1]
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(
        f"cluster: c\nssh: {{user: root, identity: {key}, known_hosts: {known}, connect_s: 3}}\n"
        f"controller: {{host: {host.address}, ssh: {{port: {host.port}}}}}\nworkers:\n"
        f"  - {{host: {host.address}, name: w1, ssh: {{port: {host.port}}}}}\n"
        f"  - {{host: {twin.address}, name: w2, port: {taken}, ssh: {{port: {twin.port}}}}}\n"
        f"  - {{host: 127.0.0.3, name: w3, ssh: {{port: {free_port(host.address)}}}}}\n"
    )
    before = {path for each in (host, twin) for path in each.directory.rglob("*")}
    try:
        found = check(inventory, PLAIN, lambda text: None)
    finally:
        twin.stop()
        somebody.close()
    assert (found.hosts, found.looked_at) == (("w1", "w2", "w3"), ("w1", "w2"))
    assert exit_of(found) is errors.Exit.PARTIAL
    failed = {(f.host, f.check) for f in found.findings if f.verdict is Verdict.FAIL}
    assert failed == {
        ("w2", f"port {taken}"),
        ("w2", "directory /var/lib/rhinoctl/worker"),
        ("w2", "machine"),
        ("w3", "ssh"),
    }
    passed = {f.check for f in found.findings if (f.host, f.verdict) == ("w1", Verdict.PASS)}
    assert {
        "network",
        "python",
        "clock",
        "port 7470",
        "port 7471",
        "directory /opt/rhinoctl",
    } <= passed
    assert {path for each in (host, twin) for path in each.directory.rglob("*")} == before


@pytest.mark.parametrize("noexec", [False, True], ids=["usual", "noexec"])
def test_what_is_safe_to_mend_is_mended_over_ssh_and_then_nothing_more(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, noexec: bool
) -> None:
    """An account without power, on a host with a disk that it may write to and one that it may not;
    nothing but the missing directories is made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host = RealHost(tmp_path / "w1", noexec=noexec)
    host.admit(key.with_suffix(".pub"))
    host.add_account("spark")
    host.start()
    (tmp_path / "known_hosts").write_text(host.known())
    inventory = tmp_path / "inventory.yml"
    mine = "/var/lib/spark"
    ssh = f"user: spark, port: {host.port}, identity: {key}, known_hosts: {tmp_path}/known_hosts"
    inventory.write_text(
        f"cluster: c\nssh: {{{ssh}}}\ninstall_dir: {mine}/rhinoctl\n"
        f"controller: {{host: {host.address}, data_dir: {mine}/controller}}\nworkers:\n"
        f"  - {{host: {host.address}, name: w1, disks: [{mine}/deep/disk, /mnt/disk]}}\n"
    )
    plans: list[CheckView] = []
    home = host.directory / "varlib/spark"
    try:
        planned = apply(inventory, PLAIN, print, plans.append, dry_run=True)
        assert (exit_of(planned), plans) == (errors.Exit.HAS_CHANGES, [])
        assert list(home.iterdir()) == []
        done = apply(inventory, PLAIN, print, plans.append)
        again = apply(inventory, PLAIN, print, plans.append)
    finally:
        host.stop()
    assert [(each.host, each.state) for each in done.mends] == [("w1", HostState.DONE)]
    assert (len(plans), again.mends) == (1, ())
    made = {str(path.relative_to(home)): path.stat() for path in home.rglob("*") if path.is_dir()}
    assert {name: oct(there.st_mode & 0o7777) for name, there in made.items()} == {
        "rhinoctl": "0o755",
        "controller": "0o700",
        "deep": "0o755",
        "deep/disk": "0o700",
    }
    assert {there.st_uid for there in made.values()} == {PLAIN_UID}
    record = (home / "rhinoctl/made").read_text().split("\n")
    assert f"new {mine}/deep/disk" in record
    failed = {f.check for f in again.findings if f.verdict is Verdict.FAIL}
    assert failed == {"directory /mnt/disk"}
    (temporary,) = [f for f in again.findings if f.check == "temporary files"]
    assert temporary.verdict is (Verdict.WARN if noexec else Verdict.PASS)
    assert ("not executed" in temporary.seen) == noexec
