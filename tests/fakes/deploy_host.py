"""A host in memory that understands the commands of a deployment, each known by what it is for.

It stands for a Linux host without systemd. What a deployment does there for real is tested over SSH
(tests/integration/test_deploy.py).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from rhinoctl.protocol import codec
from rhinoctl.remote.fleet import Fleet, Gate
from rhinoctl.remote.host import Command, Done, Host
from rhinoctl.remote.spoken import Spoken
from rhinoctl.remote.supervised import Log, ServiceState

FACTS = {
    "user": "spark",
    "uid": "1000",
    "system": "Linux",
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "cpus": "4",
    "memory_kb": str(32 << 20),
    "memory_free_kb": str(24 << 20),
    "open_files": "1048576",
    "systemd": "no",
    "sudo": "no",
    "temp": "yes",
    "python": "3.11 /usr/bin/python3.11",
    "end": "yes",
}
DIRECTORY = {
    "mount": "/",
    "type": "ext4",
    "space_kb": f"{100 << 20} {90 << 20}",
    "inodes": "6000000 5000000",
    "writable": "yes",
    "links": "yes",
    "exec": "yes",
    "sync_ns": "1000000",
}


@dataclass
class FakeHost:
    """`facts` are what it says of itself beside the usual; before a command is run, `before` may
    raise, and so be a fault in its place. Releases in `spoken` have a file that says so."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)
    before: Callable[[Command], object] = lambda command: None
    commands: list[Command] = field(default_factory=list)
    files: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    holds: set[str] = field(default_factory=set)
    releases: list[str] = field(default_factory=list)
    current: str = ""
    spoken: dict[str, Spoken] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    crashes: bool = False
    closed: bool = False

    def run(self, command: Command) -> Done:
        self.commands.append(command)
        self.before(command)
        verb, _, rest = command.what.partition(" ")
        does = getattr(self, f"_{verb}", None)
        assert does is not None, f"{command.what}: {command}"
        out = does(rest, command)
        return Done(0, out if isinstance(out, bytes) else (out or "").encode(), b"")

    def close(self) -> None:
        self.closed = True

    def asked(self, what: str) -> list[Command]:
        """The commands that begin so."""
        return [command for command in self.commands if command.what.startswith(what)]

    @property
    def changed(self) -> bool:
        """Whether any command was to change it."""
        return any(command.changes for command in self.commands)

    def pid_of(self, role: str) -> int:
        """The process of a role, 0 if it does not run."""
        return next((pid for name, pid in self.running.items() if name.endswith(role)), 0)

    # --- what it knows, by the first word of what a command is for --------------------------------

    def _look(self, rest: str, command: Command) -> str:
        if rest == "at the host":
            return self._look_at_host(command.argv[2:])
        if rest == "at what is deployed":
            return self._look_at_deployed(command.argv[2:])
        lines = [f"current versions/{self.current}", *(f"release {r}" for r in self.releases)]
        return "\n".join(lines) + "\n"

    def _look_at_host(self, arguments: tuple[str, ...]) -> str:
        said = {**FACTS, "host": self.name, "machine_id": self.name, **self.facts}
        for number, path in enumerate(arguments[1 : 1 + int(arguments[0])]):
            there = path if path in self.directories else "/"
            for key, value in {**DIRECTORY, "there": there}.items():
                said.setdefault(f"dir.{number}.{key}", value)
        return "".join(f"{key}\t{value}\n" for key, value in said.items() if value)

    def _look_at_deployed(self, arguments: tuple[str, ...]) -> str:
        top, count = arguments[0], int(arguments[1])
        directories = arguments[2 : 2 + count]
        files = arguments[3 + count :]
        _, identity = self.files.get(f"{top}/cluster", (0, b""))
        lines = [
            "user\tspark",
            f"identity\t{identity.decode()}".rstrip(),
            f"current\t{self.current}",
        ]
        if self.releases or {p for p in self.files if p.startswith(top)} - {f"{top}/cluster"}:
            lines.append("installed\tyes")
        for each in self.releases:
            said = self.spoken[each].text() if each in self.spoken else ""
            lines += [f"release\t{each}", *(f"release.{each}\t{s}" for s in said.splitlines())]
        lines += [f"made\t{each}" for each in self.made]
        lines += [f"holds\t{each}" for each in sorted(self.holds)]
        for role in ("controller", "agent"):
            if f"{top}/{role}/started" in self.files:
                started = self.files[f"{top}/{role}/started"][1].decode().strip()
                lines.append(f"started.{role}\t{started}")
        recorded = {each.removeprefix("state ") for each in self.made if each[:6] == "state "}
        gone = {*directories, *recorded} - self.directories.keys()
        lines += [f"gone\t{path}" for path in sorted(gone)]
        for number, path in enumerate(directories):
            if path in self.directories:
                lines.append(f"dir.{number}\t{self.directories[path]:o} spark")
        for number, path in enumerate(files):
            if path in self.files:
                mode, content = self.files[path]
                lines.append(f"file.{number}\t{mode:o} {hashlib.sha256(content).hexdigest()}")
        return "\n".join([*lines, "end\tyes"]) + "\n"

    def _make(self, rest: str, command: Command) -> None:
        if rest != "directories":
            return  # of a service's definition
        arguments = command.argv[4:]
        for path, mode, state in zip(arguments[::3], arguments[1::3], arguments[2::3], strict=True):
            kind = "had" if path in self.directories else "new"
            self.directories[path] = int(mode, 8)
            self.made.append(f"{kind} {path}")
            if state == "yes":
                self.made.append(f"state {path}")

    def _let(self, rest: str, command: Command) -> None:
        self.facts |= {"user_manager": "yes", "linger": "yes"}

    def _install(self, rest: str, command: Command) -> None:
        self.releases.append(rest.split(" in ")[0])

    def _switch(self, rest: str, command: Command) -> None:
        self.current = rest.removeprefix("to ").split(" in ")[0]

    def _write(self, rest: str, command: Command) -> None:
        path, mode = command.argv[-2:]
        self.files[path] = (int(mode, 8), command.input)

    def _read(self, rest: str, command: Command) -> bytes:
        return self.files.get(rest, (0, b""))[1]

    def _remove(self, rest: str, command: Command) -> str:
        if rest != "what was deployed":
            return ""
        top, wipe, *state = command.argv[2:]
        self.releases, self.current = [], ""
        if wipe == "yes":
            self.holds -= {*state}
        kept = self.holds & {*state}
        stays = {top, *kept, *self.holds} if kept else self.holds
        self.files = {p: f for p, f in self.files.items() if kept and p == f"{top}/cluster"}
        self.directories = {p: m for p, m in self.directories.items() if p in stays}
        self.made = [each for each in self.made if kept and each.split(" ")[1] in stays]
        return "".join(f"kept {path}\n" for path in sorted(kept))

    def _start(self, name: str, command: Command) -> bytes:
        self.running.setdefault(name, len(self.commands))
        self.holds |= {each.removeprefix("state ") for each in self.made if each[:6] == "state "}
        return codec.dumps(ServiceState(running=True, kept=True, pid=self.running[name]))

    def _logs(self, name: str, command: Command) -> bytes:
        lines, after = command.argv[-2:]
        begin = int(after) if after else max(len(self.said) - int(lines), 0)
        return codec.dumps(Log(lines=tuple(self.said[begin:]), cursor=str(len(self.said))))

    def _stop(self, name: str, command: Command) -> bytes:
        self.running.pop(name, None)
        return self._state(name, command)

    def _state(self, name: str, command: Command) -> bytes:
        if self.crashes and name in self.running:
            said = ServiceState(
                running=False, kept=True, restarts=3, exit_code=3, last_line="the port is taken"
            )
            return codec.dumps(said)
        runs = name in self.running
        return codec.dumps(ServiceState(running=runs, kept=runs, pid=self.running.get(name, 0)))


def fleet_of_fakes(hosts: dict[str, FakeHost]) -> Fleet[Host]:
    """A fleet of them; like a real one, it may be opened again."""
    gates: dict[str, Gate] = {}
    return Fleet(hosts, gates)
