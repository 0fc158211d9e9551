"""Supervised services, as a host deals with them for whoever has logged in:

    python -m rhinoctl.remote.supervised start|stop|state|logs|sweep …

Each verb can be repeated, and prints one line of JSON (`ServiceState`, `Log`).
"""

import os
import pwd
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rhinoctl.protocol import codec
from rhinoctl.remote.local import Processes, ProcessName, last_line, module_argv
from rhinoctl.remote.proc import born, runs, stat_fields
from rhinoctl.remote.supervisor import COOKIE, Definition, Record, read_record

UP_S: Final = 10.0
"""A supervisor that has not started anything by then does not."""

LOOK_S: Final = 0.02
SWEEPS: Final = 5
"""What is being started while the others are ended is found by the next look."""

HANDED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "RHINO_PYTHON", "PYTHONPATH")
"""Of the environment; nothing else of who happens to type a command gets into a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """How a service is. `kept`: it is started again when it ends; `since`: from when on it runs, or
    does not, in seconds since 1970 by the host's clock, 0 if that is not known; `restarts`: how
    often it was started again; `exit_code`: how it ended the last time, None if it never did or
    nobody knows, negative for the number of a signal; `last_line` of its log, unless it runs."""

    running: bool
    kept: bool
    pid: int = 0
    since: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    last_line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Lines of a log, and where the next one will be."""

    lines: tuple[str, ...]
    cursor: str


def start(definition: Definition, file: str) -> ServiceState:
    """Start the supervisor of a service, unless it runs. It has started the process on return, or
    has ended: then its state says so."""
    if not _supervised(read_record(definition)):
        _own_directory(definition)
        supervisor = _spawn(definition, file)
        until = time.monotonic() + UP_S
        while time.monotonic() < until and supervisor.poll() is None:
            if _supervised(read_record(definition)):
                break
            time.sleep(LOOK_S)
    return state(definition)


def _own_directory(definition: Definition) -> None:
    if not os.path.isdir(definition.directory):
        os.makedirs(definition.directory, mode=0o755)
        if definition.user and os.geteuid() == 0:
            account = pwd.getpwnam(definition.user)
            os.chown(definition.directory, account.pw_uid, account.pw_gid)


def _spawn(definition: Definition, file: str) -> "subprocess.Popen[bytes]":
    """In a session of its own, without a terminal, as the user that it is for."""
    environ = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    environ[COOKIE] = definition.name
    account = pwd.getpwuid(os.geteuid())
    as_user: dict[str, object] = {}
    if definition.user and definition.user != account.pw_name:
        account = pwd.getpwnam(definition.user)
        as_user = {
            "user": account.pw_uid,
            "group": account.pw_gid,
            "extra_groups": os.getgrouplist(account.pw_name, account.pw_gid),
        }
    environ |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    # The directory is the user's, and we may be root: no link of it is followed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(f"{definition.directory}/supervisor.log", flags, 0o644), "wb") as log:
        return subprocess.Popen(
            module_argv("rhinoctl.remote.supervisor", file),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environ,
            start_new_session=True,
            **as_user,  # type: ignore[call-overload]
        )


def stop(definition: Definition, patience_s: float) -> ServiceState:
    """End a service: the supervisor and its process are asked to, and what is left after
    `patience_s` is killed, whoever started it."""
    record = read_record(definition)
    if _supervised(record):
        # It hands the signal on, and ends after its process.
        asked = ProcessName(record.supervisor, record.supervisor_born)
    else:
        asked = ProcessName(record.child, record.child_born)
    Processes().end([asked], patience_s=patience_s)
    sweep(definition.name)
    return state(definition)


def sweep(name: str) -> int:
    """Kill whatever is left of a service; how many processes that were."""
    ended = 0
    for _ in range(SWEEPS):
        found = processes_of(name)
        if not found:
            break
        ended += len(Processes().end(found, patience_s=0.0, first=signal.SIGKILL))
    return ended


def processes_of(name: str) -> list[ProcessName]:
    """All processes of a service and what they have started, by what is in their environment.
    Those with other file systems than ours are in a container, and are not of this host."""
    here = os.readlink("/proc/self/ns/mnt")
    wanted = f"{COOKIE}={name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        fields = stat_fields(int(entry.name))
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            same = wanted in environ and os.readlink(entry / "ns/mnt") == here
        except OSError:
            continue  # it has ended, or is somebody else's
        if same and runs(fields):
            found.append(ProcessName(int(entry.name), int(fields[19])))
    return found


def state(definition: Definition) -> ServiceState:
    """How a service is, by what runs and not by what is written down."""
    record = read_record(definition)
    running = record.child > 0 and born(record.child) == record.child_born
    return ServiceState(
        running=running,
        kept=_supervised(record),
        pid=record.child if running else 0,
        since=record.since,
        restarts=record.restarts,
        exit_code=record.exit_code,
        last_line="" if running else _last_words(definition),
    )


def _supervised(record: Record) -> bool:
    return record.supervisor > 0 and born(record.supervisor) == record.supervisor_born


def _last_words(definition: Definition) -> str:
    return last_line(definition.log) or last_line(Path(definition.directory, "supervisor.log"))


def logs(definition: Definition, lines: int, after: str) -> Log:
    """The last lines of a log; or, after a cursor, those that came since."""
    log, older = _read(definition.log), definition.log.with_name("log.1")
    end = _whole(log)
    if not after:
        text = (_read(older) if log.count(b"\n") < lines else b"") + log
        return Log(lines=_lines(text)[-lines:], cursor=str(end))
    begin = int(after)
    # Shorter than it was: the rest is in the one before.
    text = log[begin:end] if begin <= len(log) else _read(older)[begin:] + log[:end]
    return Log(lines=_lines(text), cursor=str(end))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _whole(text: bytes) -> int:
    """How many bytes of it are whole lines."""
    return text.rfind(b"\n") + 1


def _lines(text: bytes) -> tuple[str, ...]:
    return tuple(text.decode("utf-8", "replace").splitlines())


def _run(verb: str, file: str, rest: list[str]) -> ServiceState | Log:
    definition = codec.loads(Definition, Path(file).read_bytes())
    match verb, rest:
        case "start", []:
            return start(definition, file)
        case "stop", [patience_s]:
            return stop(definition, float(patience_s))
        case "state", []:
            return state(definition)
        case "logs", [lines, after]:
            return logs(definition, int(lines), after)
    raise ValueError(f"{verb} {rest}")


def main(argv: list[str]) -> int:
    """One verb; the host's side of `rhinoctl.remote.services`."""
    verb, subject, *rest = argv
    found = sweep(subject) if verb == "sweep" else _run(verb, subject, rest)
    print(codec.dumps(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
