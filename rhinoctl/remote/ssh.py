"""Hosts over SSH, by fabric and paramiko: with deadlines, verified, and never asking anybody.

A command line goes through the account's login shell, of whatever kind and with whatever start-up
files. So it is one `exec` of `sh` with everything else quoted; what start-up files print comes
before a mark that `sh` prints first; a shell that ends before that is named as the fault.
"""

import logging
import os
import secrets
import socket
import time
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final

import fabric
import invoke
import paramiko

from rhinoctl.errors import (
    CommandTimeout,
    HostLost,
    JumpFailed,
    LoginRefused,
    LoginShellEnded,
    RhinoError,
    SudoRefused,
)
from rhinoctl.remote.host import Command, Done, joined
from rhinoctl.remote.known_hosts import Accept, Refuse, load
from rhinoctl.remote.refusals import Attempt, short, why_not
from rhinoctl.remote.way import Login as Login
from rhinoctl.remote.way import Way as Way

# Its threads tell a failed connection on stderr, with a traceback; we say it once, as an error.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

CHUNK: Final = 1 << 16
LOOK_S: Final = 0.01
"""Between two looks at a channel on which nothing moves."""

GRACE_S: Final = 5.0
"""A command that does not end when it is told to is killed after so long, by its host; and we wait
for that a little longer than the host does."""

SILENCE_S: Final = 20
"""A host that acknowledges nothing for so long is lost, however long a command may take."""

OUTPUT_MAX: Final = 64 << 20
"""What a command may print; all of it is in memory."""

TIMED_OUT: Final = 124
"""What `timeout` exits with."""

JUMP_FAILED_S: Final = 5.0
"""A jump host that has failed is not tried again for so long: those behind it wait for it once, not
one after the other."""

_SCRIPT = 'printf "%s\\n" "$0"; printf "%s\\n" "$0" >&2; cd / && LC_ALL=C exec timeout -k 5 "$@"'


NO_HOME: Final = b"Could not chdir to home directory"
"""What sshd says of an account without one; those are mostly not for people to log in."""


class SshHost:
    """A host behind SSH (`rhinoctl.remote.host.Host`), connected with the first command."""

    def __init__(self, name: str, way: Way, login: Login, jump: "SshHost | None" = None) -> None:
        self._name = name
        self._way = way
        self._login = login
        self._jump = jump
        self._opening = Lock()
        self._failed: tuple[float, RhinoError] | None = None
        config = fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)
        self._connection: fabric.Connection = fabric.Connection(
            way.address,
            user=way.user,
            port=way.port,
            config=config,
            gateway=None if jump is None else jump._connection,
            connect_timeout=way.connect_s,
            connect_kwargs=self._kwargs(),
        )

    def _kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {
            "banner_timeout": self._way.connect_s,
            "auth_timeout": self._way.connect_s,
            "channel_timeout": self._way.connect_s,
        }
        if self._way.identity is not None:
            kwargs["key_filename"] = self._way.identity_file
        if self._login.password is not None:
            kwargs["password"] = self._login.password.reveal()
        if self._login.passphrase is not None:
            kwargs["passphrase"] = self._login.passphrase.reveal()
        return kwargs

    @property
    def name(self) -> str:
        return self._name

    # --- connecting ------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect, if that has not been done. Raises HostUnreachable, HostKeyUnknown,
        HostKeyChanged, KnownHostsUnusable, LoginRefused and JumpFailed: one reason, within some
        `connect_s`."""
        # Of a jump host there is one connection, and the threads of all that are behind it are here
        # at once.
        with self._opening:
            if not self._connection.is_connected:
                self._open()

    def _open(self) -> None:
        if self._jump is not None:
            try:
                self._jump._connect_for_others()
            except RhinoError as fault:
                raise JumpFailed(
                    f"{self._name}: its jump host does not let us through: {fault.message}",
                    remedy=fault.remedy,
                ) from None
        self._check_identity()
        client = self._connection.client
        client.close()  # what is left of one that has ended says nothing about this one
        file = Path(self._way.known_hosts_file)
        load(client.get_host_keys(), self._name, file)
        policy = (
            Accept(self._name, file, self._login.tell)
            if self._login.accept_new
            else Refuse(self._name, file)
        )
        client.set_missing_host_key_policy(policy)
        try:
            self._connection.open()
        except (OSError, EOFError, paramiko.SSHException, ValueError) as fault:
            raise why_not(self._attempt(client), fault) from None
        finally:
            if not self._connection.is_connected:
                client.close()
        _watch(self._connection.transport.sock)

    def _connect_for_others(self) -> None:
        """Connect to a jump host. Raises what `connect` does, and again for as long as
        `JUMP_FAILED_S`."""
        with self._opening:
            if self._connection.is_connected:
                return
            if self._failed is not None and time.monotonic() < self._failed[0] + JUMP_FAILED_S:
                raise self._failed[1]
            try:
                self._open()
            except RhinoError as fault:
                self._failed = (time.monotonic(), fault)
                raise

    def _attempt(self, client: paramiko.SSHClient) -> Attempt:
        there = self._connection
        return Attempt(
            name=self._name,
            at=f"{there.user}@{there.host}:{there.port}",
            way=self._way,
            jump=None if self._jump is None else self._jump._way,
            login=self._login,
            transport=client.get_transport(),
        )

    def _check_identity(self) -> None:
        file = self._way.identity_file
        if file is not None and not os.path.isfile(file):
            raise LoginRefused(
                f"{self._name}: the identity {self._way.identity} is not there on this machine",
                remedy="name the private key's file: `ssh.identity` of the inventory",
            )

    # --- running ---------------------------------------------------------------------------------

    def run(self, command: Command) -> Done:
        """Run a command. Raises what `connect` does, HostLost, CommandTimeout, LoginShellEnded and
        SudoRefused."""
        self.connect()
        allowed = self._way.command_s if command.timeout_s is None else command.timeout_s
        mark = f"rhino-{secrets.token_hex(8)}"
        argv = ("sudo", "-n", "--", *command.argv) if self._as_root(command) else command.argv
        line = f"exec {joined(('sh', '-c', _SCRIPT, mark, f'{allowed:g}', *argv))}"
        with command.open_input() as given:
            done = self._exchange(command, line, given, allowed + GRACE_S + self._way.connect_s)
        out, err = _after(done.stdout, mark), _after(done.stderr, mark)
        if out is None or err is None:
            raise self._shell_ended(done)
        if done.exit_code == TIMED_OUT:
            raise self._too_late(command, allowed)
        done = replace(done, stdout=out, stderr=err)
        if self._as_root(command) and done.exit_code == 1 and err.startswith(b"sudo: "):
            raise SudoRefused(
                f"{self._name}: {short(err.decode('utf-8', 'replace'))}",
                remedy="let the account run sudo without a password (NOPASSWD), or install"
                " without root: `ssh.sudo: false`",
            )
        return done

    def _shell_ended(self, done: Done) -> LoginShellEnded:
        said = [
            short(each.decode("utf-8", "replace")) for each in (done.stderr, done.stdout) if each
        ]
        see = "see its start-up files, such as .bashrc, and that it has a login shell"
        if NO_HOME in done.stderr:
            see = "name another `ssh.user`, or give it a home directory and a login shell"
        return LoginShellEnded(
            f"{self._name}: the login shell of {self._connection.user} ends before it runs a"
            f" command: {'; '.join(said)[-200:] or 'it said nothing'}",
            remedy=f"{see}: `{self._by_hand('true')}` has to work",
        )

    def _by_hand(self, *command: str) -> str:
        return self._way.by_hand(None if self._jump is None else self._jump._way, *command)

    def _as_root(self, command: Command) -> bool:
        return command.root and self._way.sudo

    def _too_late(self, command: Command, allowed: float) -> CommandTimeout:
        longer = command.longer
        if command.timeout_s is None:
            longer = "`ssh.command_s` of the inventory"
        then = f"{longer} gives it longer" if longer else "then repeat the command"
        return CommandTimeout(
            f"{self._name}: {command.what}: not within {allowed:g} s; it was ended there",
            remedy=f"see what keeps the host busy; {then}",
        )

    def _exchange(self, command: Command, line: str, given: BinaryIO, allowed: float) -> Done:
        """Send a command line and its input, and take what comes, until it has ended."""
        deadline = time.monotonic() + allowed
        try:
            channel = self._connection.transport.open_session(timeout=self._way.connect_s)
            try:
                channel.exec_command(line)
                return _talk(channel, given, deadline)
            finally:
                channel.close()
        except TimeoutError:
            raise self._too_late(command, allowed) from None
        except (OSError, EOFError, paramiko.SSHException, invoke.exceptions.Failure) as fault:
            self._connection.close()
            raise HostLost(
                f"{self._name}: the connection ended while it was to {command.what}:"
                f" {short(fault)}",
                remedy="whether it was done is not known; repeat the command once the host is back",
            ) from None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _watch(way: object) -> None:
    """Have the kernel end a connection whose other end is gone. Behind a jump host it is the
    connection to that one, which is watched already; the host behind it has the command's time."""
    if isinstance(way, socket.socket):
        way.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            way.setsockopt(socket.IPPROTO_TCP, option, SILENCE_S // 4)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_S)


def _talk(channel: paramiko.Channel, given: BinaryIO, deadline: float) -> Done:
    """Raises TimeoutError."""
    out, err = bytearray(), bytearray()
    waiting = memoryview(given.read(CHUNK))
    if not waiting:
        channel.shutdown_write()
    while True:
        moved = False
        if waiting and channel.send_ready() and not channel.exit_status_ready():
            waiting = waiting[channel.send(waiting) :] or memoryview(given.read(CHUNK))
            moved = True
            if not waiting:
                channel.shutdown_write()
        if channel.recv_ready():
            out += channel.recv(CHUNK)
            moved = True
        if channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
            moved = True
        if len(out) + len(err) > OUTPUT_MAX:
            raise OSError(f"it prints more than {OUTPUT_MAX >> 20} MB")
        if moved:
            continue
        if channel.exit_status_ready() and (channel.eof_received or channel.closed):
            # What came with the end may have been put there since we looked.
            if not channel.recv_ready() and not channel.recv_stderr_ready():
                return Done(_exit_code(channel), bytes(out), bytes(err))
            continue
        if channel.closed:
            raise EOFError("the channel was closed")
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(LOOK_S)


def _exit_code(channel: paramiko.Channel) -> int:
    """-1 stands for a command that a signal ended, or that ended with its connection."""
    code: int = channel.recv_exit_status()
    if code == -1 and not channel.get_transport().is_active():
        raise EOFError("the connection was closed")
    return code


def _after(text: bytes, mark: str) -> bytes | None:
    """What was printed after the line with the mark; None if there is none."""
    _, found, rest = text.partition(f"{mark}\n".encode())
    return rest if found else None
