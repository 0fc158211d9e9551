"""Why a connection over SSH did not come about: one reason, and what to do about it.

The error of the library says little: "No existing session" for a port that is silent, "Invalid
key" for a wrong passphrase. So the reason is sought by how far the connection came: to the address,
to a greeting, to the host's key, to the login.
"""

import socket
from dataclasses import dataclass
from typing import Final

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from rhinoctl.errors import HostKeyChanged, HostUnreachable, LoginRefused, RhinoError
from rhinoctl.remote.way import Login, Way

PASSPHRASE: Final = "RHINO_SSH_PASSPHRASE"
"""That of the key, where no SSH agent holds it. Not the password: that is for hosts only."""

_KINDS: Final = (paramiko.RSAKey, paramiko.ECDSAKey, paramiko.Ed25519Key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A connection that did not come about. `at` is user, address and port; `transport` what there
    was of it, None if nothing has answered."""

    name: str
    at: str
    way: Way
    jump: Way | None
    login: Login
    transport: paramiko.Transport | None


def why_not(tried: Attempt, fault: Exception) -> RhinoError:
    """What a failed connection means for a person."""
    match fault:
        case paramiko.BadHostKeyException():
            return HostKeyChanged(
                f"{tried.name}: its host key is not the one that is known: it shows"
                f" {fault.key.get_name()}, and {tried.way.known_hosts} has another",
                remedy=f"if the host was installed anew, `{tried.way.forget_by_hand()}` and connect"
                " again; if not, somebody else answers in its place",
            )
        case paramiko.ChannelException():
            return _unreachable(tried, f"its jump host cannot connect there: {fault.text}")
        case NoValidConnectionsError():
            reasons = sorted({each.strerror or "?" for each in fault.errors.values()})
            return _unreachable(tried, " and ".join(reasons))
        case socket.gaierror():
            return _unreachable(tried, "its name has no address")
        case paramiko.AuthenticationException():
            return _not_let_in(tried, fault)
    transport = tried.transport
    if transport is None and tried.jump is not None:
        return _unreachable(tried, f"no way there from its jump host: {short(fault)}")
    if transport is None:
        timed_out = isinstance(fault, TimeoutError)
        why = f"no answer within {tried.way.connect_s:g} s" if timed_out else short(fault)
        return _unreachable(tried, why)
    if not transport.remote_version:
        return _no_ssh(tried, fault)
    # A key that cannot be read ends a login before the host has heard of it.
    if transport.initial_kex_done and transport.is_active():
        return _not_let_in(tried, fault)
    return _unreachable(tried, f"the connection ended before the login: {short(fault)}")


def _unreachable(tried: Attempt, why: str) -> HostUnreachable:
    return HostUnreachable(
        f"{tried.name}: {tried.at} cannot be reached: {why}",
        remedy="see that it runs, that its sshd listens, and that the network lets us there",
    )


def _no_ssh(tried: Attempt, fault: Exception) -> HostUnreachable:
    """Something has taken the connection, and has not greeted as SSH servers do."""
    cause = fault.__context__ or fault
    silent = tried.transport is not None and tried.transport.is_active()
    if silent or isinstance(cause, TimeoutError):
        why = f"no greeting within {tried.way.connect_s:g} s"
    elif isinstance(cause, (OSError, EOFError)):
        why = "it ends the connection without a greeting"
    else:
        why = short(fault)
    return HostUnreachable(
        f"{tried.name}: {tried.way.address} does not answer as an SSH server does on port"
        f" {tried.way.port}: {why}",
        remedy="see what listens there, and whether `ssh.port` of the inventory is the port of its"
        f" sshd: `{tried.way.by_hand(tried.jump)}`",
    )


# --- the login -----------------------------------------------------------------------------------


def _not_let_in(tried: Attempt, fault: Exception) -> LoginRefused:
    unusable = _identity_unusable(tried)
    if unusable is not None:
        return unusable
    remedy = (
        f"try it by hand, `{tried.way.by_hand(tried.jump)}`; see `ssh.user` and `ssh.identity` of"
        f" the inventory, `ssh-add -l`, and --ask-password"
    )
    if not isinstance(fault, paramiko.AuthenticationException) or isinstance(
        fault, paramiko.PasswordRequiredException
    ):  # it is about one of the keys in ~/.ssh
        remedy += f"; {PASSPHRASE} opens a key that no agent holds"
    return LoginRefused(
        f"{tried.name}: {tried.at} does not let us in: {short(fault)}", remedy=remedy
    )


def _identity_unusable(tried: Attempt) -> LoginRefused | None:
    """The error about an identity that cannot be read or opened; None if it can."""
    file = tried.way.identity_file
    if file is None:
        return None
    given = tried.login.passphrase or tried.login.password
    secret = None if given is None else given.reveal()
    begin = f"{tried.name}: {tried.at} does not let us in without a key"
    try:
        if any(_opens(kind, file, secret) for kind in _KINDS):
            return None
        locked = any(_is_locked(kind, file) for kind in _KINDS)
    except OSError as fault:
        return LoginRefused(
            f"{begin}: the identity {file} cannot be read: {fault.strerror or fault}",
            remedy="let this account read it, or name another file: `ssh.identity`",
        )
    if locked and tried.login.passphrase is not None:
        return LoginRefused(
            f"{begin}: the passphrase given does not open the identity {file}",
            remedy=f"see {PASSPHRASE}: `ssh-keygen -y -f {file}` tells whether one is right",
        )
    if locked:
        return LoginRefused(
            f"{begin}: the identity {file} has a passphrase, and no other key is accepted",
            remedy=f"`ssh-add {file}`, or give its passphrase in {PASSPHRASE}",
        )
    return LoginRefused(
        f"{begin}: the identity {file} is no private key (RSA, ECDSA or Ed25519)",
        remedy=f"name the private half of a key: `ssh.identity`; `ssh-keygen -y -f {file}` has to"
        " show the public one",
    )


def _opens(kind: type[paramiko.PKey], file: str, secret: str | None) -> bool:
    """Whether a file is a key of a kind. Raises OSError."""
    try:
        kind.from_private_key_file(file, secret)
    except (paramiko.SSHException, ValueError):
        return False
    return True


def _is_locked(kind: type[paramiko.PKey], file: str) -> bool:
    """Whether a file is a key with a passphrase. Raises OSError."""
    try:
        kind.from_private_key_file(file)
    except paramiko.PasswordRequiredException:
        return True
    except (paramiko.SSHException, ValueError):
        return False
    return False


def short(fault: object) -> str:
    """An error of a library, in one line that is not empty."""
    text = " ".join(str(fault).split())
    if not text and isinstance(fault, EOFError):
        return "the other end has closed it"
    return text or type(fault).__name__
