"""What is kept running on a host, in one of three ways: a unit of systemd, a unit of the account's
own systemd, or a supervisor of ours. docs/operations/hosts.md says it for people.

Invariants:

1. Every function can be repeated: what is as it should be is left alone.
2. What belongs to a service is found by what runs, not by what is written down.
3. Every command has a deadline.
"""

import importlib.resources
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import PurePosixPath
from typing import Final, Protocol

import jinja2

from rhinoctl.errors import CommandFailed, ServiceFailed
from rhinoctl.protocol import codec
from rhinoctl.remote.facts import HostFacts
from rhinoctl.remote.host import Command, Host, checked, write_file
from rhinoctl.remote.packages import python_of
from rhinoctl.remote.supervised import Log, ServiceState
from rhinoctl.remote.supervisor import COOKIE, Definition

UNITS: Final = "/etc/systemd/system"
USER_UNITS: Final = ".config/systemd/user"

MARGIN_S: Final = 30.0
"""On top of the patience with a service, for the command that ends it."""

NOTHING: Final = ServiceState(running=False, kept=False)


class Kind(Enum):
    """How a service is kept running."""

    SYSTEMD = "systemd"
    SYSTEMD_USER = "systemd-user"
    SUPERVISED = "supervised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A module of a release that is kept running with a settings file. `run_dir` is a directory of
    the host that outlives a restart of it; `python` is its interpreter. `memory_mb` and `cpus`
    bound it with all that it starts, under systemd only; None: no bound. It has `patience_s` to
    end when it is asked to."""

    name: str
    module: str
    settings: str
    install_dir: str
    run_dir: str
    python: str
    user: str
    memory_mb: int | None = None
    cpus: float | None = None
    patience_s: float = 30.0

    @property
    def argv(self) -> tuple[str, ...]:
        return ("/bin/sh", f"{self.install_dir}/current/run", self.module, self.settings)


def choose_kind(facts: HostFacts, *, sudo: bool) -> Kind:
    """How services are kept on a host: with root a unit of systemd; without, a unit of the account
    if that is looked after also when nobody is logged in; else a supervisor."""
    if not facts.systemd:
        return Kind.SUPERVISED
    if sudo or facts.uid == 0:
        return Kind.SYSTEMD
    if facts.user_manager and facts.linger:
        return Kind.SYSTEMD_USER
    return Kind.SUPERVISED


class Keeper(Protocol):
    """The services of a host. All may raise CommandFailed and what `Host.run` does."""

    def define(self, service: Service) -> bool:
        """Write down what is to be kept, to be started with the host as far as the kind allows;
        whether it was another one. What runs is not touched."""

    def start(self, service: Service) -> ServiceState:
        """Start a service that was defined, unless it is kept running. Raises ServiceFailed."""

    def stop(self, service: Service, patience_s: float) -> ServiceState:
        """Ask it to end, and kill what is left of it after `patience_s`, with all it started."""

    def state(self, service: Service) -> ServiceState:
        """How it is; also for one that was never defined."""

    def logs(self, service: Service, lines: int = 100, after: str = "") -> Log:
        """The last lines of its log; after a cursor, those that came since."""

    def remove(self, service: Service, patience_s: float) -> None:
        """Stop it, and remove what `define` and `start` have written, its log included."""


def keeper_of(host: Host, facts: HostFacts, *, sudo: bool) -> Keeper:
    """Who keeps services on a host (`choose_kind`). Without root an account may have begun to
    linger, or may not linger any more, since a service was started: what runs the other way is
    found, too."""
    kind = choose_kind(facts, sudo=sudo)
    if kind is Kind.SYSTEMD:
        return Systemd(host, root=sudo)
    supervised = Supervised(host, python=python_of(facts)[1], root=sudo)
    if not facts.systemd:
        return supervised
    units = Systemd(host, root=False, user_units=f"{facts.home}/{USER_UNITS}", uid=facts.uid)
    if kind is Kind.SUPERVISED:
        return Either(supervised, units) if facts.user_manager else supervised
    return Either(units, supervised)


class Either:
    """Two ways in which a service may be kept (`Keeper`): the first is how one is started, and what
    the second keeps goes on until it is ended."""

    def __init__(self, first: Keeper, second: Keeper) -> None:
        self._first = first
        self._second = second

    def define(self, service: Service) -> bool:
        return self._first.define(service)

    def start(self, service: Service) -> ServiceState:
        found = self._second.state(service)
        if found.kept:
            return found
        if found != NOTHING:
            self._second.remove(service, MARGIN_S)
        return self._first.start(service)

    def stop(self, service: Service, patience_s: float) -> ServiceState:
        return self._look(service)[0].stop(service, patience_s)

    def state(self, service: Service) -> ServiceState:
        return self._look(service)[1]

    def logs(self, service: Service, lines: int = 100, after: str = "") -> Log:
        return self._look(service)[0].logs(service, lines, after)

    def remove(self, service: Service, patience_s: float) -> None:
        self._second.remove(service, patience_s)
        self._first.remove(service, patience_s)

    def _look(self, service: Service) -> tuple[Keeper, ServiceState]:
        """Who keeps it running, or did last, or would; and how it is."""
        first, second = self._first.state(service), self._second.state(service)
        if first.running or first.kept or second == NOTHING:
            return self._first, first
        if second.running or second.kept or first == NOTHING:
            return self._second, second
        return self._first, first


_LINGER = """\
loginctl --no-ask-password enable-linger "$1" || exit
# Its systemd is started then, and takes a moment.
for look in 1 2 3 4 5 6 7 8 9 10; do
    if [ -S "/run/user/$(id -u "$1")/systemd/private" ]; then exit 0; fi
    sleep 0.5
done
"""


def enable_linger(host: Host, user: str) -> None:
    """Have systemd look after services of the account that is logged in also while it is not, as
    most hosts allow without root. Raises CommandFailed where one does not, and what `Host.run`
    does."""
    done = host.run(
        Command(
            argv=("sh", "-c", _LINGER, "sh", user),
            what=f"let {user} linger",
            timeout_s=MARGIN_S,
            changes=True,
        )
    )
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.exit_code}"
        raise CommandFailed(
            f"{host.name}: {user} may not linger by its own wish: {said}",
            remedy=f"by a person with root, once: `sudo loginctl enable-linger {user}` there",
        )


def restart(keeper: Keeper, service: Service, patience_s: float) -> ServiceState:
    """End a service and start it anew, of the release that is current by then."""
    keeper.stop(service, patience_s)
    return keeper.start(service)


def follow(
    keeper: Keeper,
    service: Service,
    lines: int,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[str, ...]]:
    """The last lines of a log, then those that come, for ever; one command a second."""
    log = keeper.logs(service, lines)
    while True:
        yield log.lines
        pause(1.0)
        log = keeper.logs(service, lines, log.cursor)


def _write_if_other(host: Host, path: str, content: bytes, *, root: bool) -> bool:
    """Write a file that is not as it should be; whether it was not."""
    argv = ("sh", "-c", 'cat "$1" 2>/dev/null || :', "sh", path)
    if checked(host, Command(argv=argv, what=f"read {path}", root=root)).stdout == content:
        return False
    where = str(PurePosixPath(path).parent)
    make = Command(argv=("mkdir", "-p", where), what=f"make {where}", changes=True, root=root)
    checked(host, make)
    write_file(host, PurePosixPath(path), content, 0o644, root=root)
    return True


# --- a supervisor of ours ------------------------------------------------------------------------

_IF_DEFINED = 'file=$1; shift; test -e "$file" || exit 0; exec "$@"'


class Supervised:
    """A supervisor a service (`Keeper`). It does not come back with the host by itself."""

    def __init__(self, host: Host, *, python: str, root: bool) -> None:
        self._host = host
        self._python = python
        self._root = root

    def define(self, service: Service) -> bool:
        definition = Definition(
            name=service.name,
            argv=service.argv,
            directory=f"{service.run_dir}/{service.name}",
            user=service.user,
        )
        content = codec.dumps(definition) + b"\n"
        return _write_if_other(self._host, _file(service), content, root=self._root)

    def start(self, service: Service) -> ServiceState:
        found = self._state(service, "start", timeout_s=MARGIN_S, changes=True)
        if found != NOTHING and not found.kept:
            raise ServiceFailed(
                f"{self._host.name}: {service.name} was not started: {found.last_line}",
                remedy=f"see {service.run_dir}/{service.name} there",
            )
        return found

    def stop(self, service: Service, patience_s: float) -> ServiceState:
        until = 2 * patience_s + MARGIN_S
        return self._state(service, "stop", f"{patience_s:g}", timeout_s=until, changes=True)

    def state(self, service: Service) -> ServiceState:
        return self._state(service, "state", timeout_s=MARGIN_S, changes=False)

    def logs(self, service: Service, lines: int = 100, after: str = "") -> Log:
        said = self._ask(service, "logs", str(lines), after, timeout_s=MARGIN_S, changes=False)
        log: Log = codec.loads(Log, said) if said else Log(lines=(), cursor="")
        return log

    def remove(self, service: Service, patience_s: float) -> None:
        self.stop(service, patience_s)
        paths = (_file(service), f"{service.run_dir}/{service.name}")
        argv = ("rm", "-rf", *paths)
        what = f"remove {service.name}"
        checked(self._host, Command(argv=argv, what=what, changes=True, root=self._root))

    def _state(self, service: Service, *verb: str, timeout_s: float, changes: bool) -> ServiceState:
        said = self._ask(service, *verb, timeout_s=timeout_s, changes=changes)
        state: ServiceState = codec.loads(ServiceState, said) if said else NOTHING
        return state  # nothing is said in a dry run

    def _ask(self, service: Service, *verb: str, timeout_s: float, changes: bool) -> bytes:
        name, *rest = verb
        file, module = _file(service), _module(service, self._python)
        # What was never defined cannot be started; but it is known how it is.
        guard = () if name == "start" else ("sh", "-c", _IF_DEFINED, "sh", file)
        command = Command(
            argv=(*guard, *module, name, file, *rest),
            what=f"{name} {service.name}",
            timeout_s=timeout_s,
            changes=changes,
            root=self._root,
        )
        return checked(self._host, command).stdout


def _file(service: Service) -> str:
    return f"{service.run_dir}/{service.name}.service.json"


def _module(service: Service, python: str) -> tuple[str, ...]:
    run = f"{service.install_dir}/current/run"
    return ("env", f"RHINO_PYTHON={python}", "sh", run, "rhinoctl.remote.supervised")


# --- systemd -------------------------------------------------------------------------------------

_SHOW = """\
unit=$1
shift
"$@" show "$unit" -p LoadState,ActiveState,MainPID,NRestarts,ExecMainStatus,ExecMainCode \
    -p ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic,UnitFileState,NeedDaemonReload
echo "Now=$(date +%s)"
echo "Uptime=$(cut -d' ' -f1 /proc/uptime)"
"""
_STOP = """\
unit=$1 patience=$2
shift 2
if ! timeout "$patience" "$@" stop "$unit"; then
    "$@" kill --signal=SIGKILL "$unit"
    "$@" stop "$unit"
fi
"""
_EXITED: Final = 1
"""Of ExecMainCode: it has exited; above, a signal has ended it."""


def unit_text(service: Service, *, user_unit: bool) -> str:
    """The unit of a service. Its paths are those of an inventory, without blanks and percents."""
    source = importlib.resources.files("rhinoctl_data.templates").joinpath("service.j2")
    template = jinja2.Template(
        source.read_text("utf-8"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return template.render(service=service, user_unit=user_unit, cookie=COOKIE)


class Systemd:
    """Units of systemd (`Keeper`), of the system or of an account; the journal has the log."""

    def __init__(
        self, host: Host, *, root: bool, user_units: str | None = None, uid: int = 0
    ) -> None:
        self._host = host
        self._root = root
        self._units = user_units or UNITS
        self._is_user = user_units is not None
        runtime = ("env", f"XDG_RUNTIME_DIR=/run/user/{uid}") if self._is_user else ()
        scope = ("--user",) if self._is_user else ()
        self._systemctl = (*runtime, "systemctl", *scope)
        self._journalctl = (*runtime, "journalctl", *scope)

    def define(self, service: Service) -> bool:
        text = unit_text(service, user_unit=self._is_user)
        path = f"{self._units}/{service.name}.service"
        changed = _write_if_other(self._host, path, text.encode(), root=self._root)
        said = self._show(service)
        if changed or said.get("NeedDaemonReload") == "yes":
            self._do("daemon-reload", what="reload the units")
        if said.get("UnitFileState") != "enabled":
            self._do("enable", "--quiet", _unit(service), what=f"enable {service.name}")
            changed = True
        return changed

    def start(self, service: Service) -> ServiceState:
        found = self.state(service)
        if found.kept:
            return found
        self._do("start", _unit(service), what=f"start {service.name}")
        return self.state(service)

    def stop(self, service: Service, patience_s: float) -> ServiceState:
        if self._show(service).get("LoadState") == "loaded":
            argv = ("sh", "-c", _STOP, "sh", _unit(service), f"{patience_s:g}", *self._systemctl)
            self._run(argv, f"stop {service.name}", timeout_s=patience_s + 2 * MARGIN_S)
            argv = (*_module(service, service.python), "sweep", service.name)
            self._run(argv, f"end what is left of {service.name}", timeout_s=MARGIN_S)
        return self.state(service)

    def state(self, service: Service) -> ServiceState:
        state = state_of(self._show(service))
        if state.running or state == NOTHING:
            return state
        log = self.logs(service, 1)
        return replace(state, last_line=log.lines[-1] if log.lines else "")

    def logs(self, service: Service, lines: int = 100, after: str = "") -> Log:
        where = (f"--after-cursor={after}",) if after else (f"--lines={lines}",)
        argv = (*self._journalctl, "--no-pager", "--quiet", "--output=cat", "--show-cursor")
        argv = (*argv, f"--unit={_unit(service)}", *where)
        return journal(self._run(argv, f"read the log of {service.name}", changes=False), after)

    def remove(self, service: Service, patience_s: float) -> None:
        self.stop(service, patience_s)
        path = f"{self._units}/{service.name}.service"
        if self._show(service).get("LoadState") == "loaded":
            self._do("disable", "--quiet", _unit(service), what=f"disable {service.name}")
        self._run(("rm", "-f", path), f"remove {path}")
        self._do("daemon-reload", what="reload the units")

    def _show(self, service: Service) -> dict[str, str]:
        argv = ("sh", "-c", _SHOW, "sh", _unit(service), *self._systemctl)
        said = self._run(argv, f"look at {service.name}", changes=False)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    def _do(self, *arguments: str, what: str) -> None:
        self._run((*self._systemctl, *arguments), what)

    def _run(
        self, argv: tuple[str, ...], what: str, *, timeout_s: float = MARGIN_S, changes: bool = True
    ) -> str:
        command = Command(
            argv=argv, what=what, timeout_s=timeout_s, changes=changes, root=self._root
        )
        return checked(self._host, command).text


def _unit(service: Service) -> str:
    return f"{service.name}.service"


def state_of(said: dict[str, str]) -> ServiceState:
    """What `systemctl show` says of a unit, with the host's `Now` and `Uptime` in seconds."""
    if said.get("LoadState") != "loaded":
        return NOTHING
    pid = int(said.get("MainPID") or 0)
    code = int(said.get("ExecMainCode") or 0)
    status = int(said.get("ExecMainStatus") or 0)
    which = "ExecMainStartTimestampMonotonic" if pid else "ExecMainExitTimestampMonotonic"
    at_us = int(said.get(which) or 0)
    since = float(said["Now"]) - float(said["Uptime"]) + at_us / 1e6 if at_us else 0.0
    return ServiceState(
        running=pid > 0,
        kept=said.get("ActiveState") in ("active", "activating", "reloading"),
        pid=pid,
        since=since,
        restarts=int(said.get("NRestarts") or 0),
        exit_code=None if code == 0 else status if code == _EXITED else -status,
    )


def journal(text: str, after: str) -> Log:
    """The lines and the cursor that `journalctl --show-cursor` prints last."""
    *lines, last = text.splitlines() or [""]
    if not last.startswith("-- cursor: "):
        return Log(lines=tuple(text.splitlines()), cursor=after)
    return Log(lines=tuple(lines), cursor=last.removeprefix("-- cursor: "))
