"""Whether a host is fit for its part in a cluster: from what it says of itself to findings, and
nothing else. Each rule and its bound is explained in docs/operations/check.md."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rhinoctl.config.rates import Drift, ago
from rhinoctl.protocol.sizes import size
from rhinoctl.remote.deployed import STRANGE
from rhinoctl.remote.facts import DirectoryFacts, HostFacts
from rhinoctl.remote.network import Stretch
from rhinoctl.remote.packages import GLIBC_MIN, PYTHON_MIN, fit_python
from rhinoctl.remote.services import Kind, choose_kind

SPARK: Final = (4, 2)

CLOCK_WARN_S: Final = 1.0
CLOCK_FAIL_S: Final = 60.0
"""Nothing is decided by a clock; but certificates, and people who read logs, need it."""

SPACE_WARN: Final = 10 << 30
SPACE_FAIL: Final = 1 << 30
INODES_WARN: Final = 200_000
INODES_FAIL: Final = 20_000
SYNC_WARN_S: Final = 0.02
SYNC_FAIL_S: Final = 0.5
"""A batch is decided once the slowest of its workers has synced its log."""

NETWORK_WARN: Final = 50 << 20
"""Bytes a second: a worker's first copy of 10 GB takes three minutes then."""

FILES_WARN: Final = 65_536
FILES_FAIL: Final = 4_096
REMOTE_TYPES: Final = frozenset({"nfs", "nfs4", "cifs", "smb2", "fuseblk", "9p"})
FLEETING_TYPES: Final = frozenset({"tmpfs", "ramfs"})

SERVICES: Final = {
    Kind.SYSTEMD: "a system unit",
    Kind.SYSTEMD_USER: "a unit of the user",
    Kind.SUPERVISED: "no systemd: supervised",
}


class Verdict(Enum):
    """How a check ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinding:
    """One check of one host: what was seen, and what to do unless it passed."""

    host: str
    check: str
    verdict: Verdict
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a host is to be: the directories for state and for the installation, the ports that it
    is to listen on, and what the inventory asks for. 0: no bound."""

    name: str
    disks: tuple[str, ...]
    install_dir: str
    ports: tuple[int, ...]
    sudo: bool
    is_worker: bool
    memory_bytes: int = 0
    cpus: float = 0.0
    instance_bytes: int = 0
    slots: int = 0
    require_hardlink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What of ours is on a host already: the processes that listen on its ports, whether anything
    was installed, directories that were made or taken, those for state with something `strange` in
    them, and the other cluster that has the host."""

    listens: Mapping[int, str] = field(default_factory=dict)
    installed: bool = False
    known: frozenset[str] = frozenset()
    strange: frozenset[str] = frozenset()
    foreign: str = ""


NOTHING: Final = Ours()


def judge_host(part: Part, facts: HostFacts, ours: Ours = NOTHING) -> tuple[HostFinding, ...]:
    """Every check of a host, in one order for all hosts."""
    judged = (
        *_system(part, facts),
        *_service(part, facts, ours),
        *_resources(part, facts),
        *_foreign(part, ours),
        *_directories(part, facts, ours),
        *_ports(part, facts, ours),
        *_spark(part, facts),
    )
    return tuple(
        HostFinding(host=part.name, check=check, verdict=verdict, seen=seen, remedy=remedy)
        for check, verdict, seen, remedy in judged
    )


Judged = tuple[str, Verdict, str, str]
"""Check, verdict, what was seen, and the remedy."""


def judge_fleet(facts: Mapping[str, HostFacts]) -> tuple[HostFinding, ...]:
    """What is wrong with hosts beside each other: one machine under two names, Sparks of several
    versions."""
    found = []
    for name, others in _same(facts).items():
        found.append(
            HostFinding(
                host=name,
                check="machine",
                verdict=Verdict.FAIL,
                seen=f"its machine id is that of {', '.join(others)}, too",
                remedy="if it is one machine under two names, leave one out of the inventory; if it"
                " was cloned, give it an id of its own: systemd-machine-id-setup",
            )
        )
    versions = {version for each in facts.values() for version in each.spark if version}
    if len(versions) > 1:
        for name, each in facts.items():
            if each.spark:
                found.append(
                    HostFinding(
                        host=name,
                        check="spark",
                        verdict=Verdict.WARN,
                        seen=f"its Spark is {', '.join(each.spark)}, others are"
                        f" {', '.join(sorted(versions - {*each.spark}))}",
                        remedy="let all of Spark's workers have one version",
                    )
                )
    return tuple(found)


def judge_network(stretches: Sequence[Stretch]) -> tuple[HostFinding, ...]:
    """What was measured from each worker to the next."""
    found = []
    for each in stretches:
        to = f"to {each.receiver}: "
        if each.unmeasured:
            verdict, seen = Verdict.WARN, f"{to}not measured: {each.unmeasured}"
            remedy = (
                f"a larger `ssh.sessions`, at least 2, lets it be measured; see yourself that port"
                f" {each.port} of {each.receiver} is open, and say `bandwidth_mb_s` of the workers"
            )
        elif each.bytes_s is None:
            verdict, seen = Verdict.FAIL, f"{to}{each.fault}"
            remedy = (
                f"open port {each.port} of {each.receiver}, the last of its agent's range, to the"
                " other workers, and see that its `address` leads there"
            )
        else:
            slow = each.bytes_s < NETWORK_WARN
            verdict, seen = (
                Verdict.WARN if slow else Verdict.PASS,
                f"{to}{size(round(each.bytes_s))}/s",
            )
            remedy = "copies and moves take their time; see which network `address` leads over"
        found.append(
            HostFinding(
                host=each.sender,
                check="network",
                verdict=verdict,
                seen=seen,
                remedy="" if verdict is Verdict.PASS else remedy,
            )
        )
    return tuple(found)


def judge_drifts(drifts: Sequence[Drift]) -> tuple[HostFinding, ...]:
    """Where copies are placed for another network than there is."""
    return tuple(
        HostFinding(
            host=each.worker,
            check="network",
            verdict=Verdict.WARN,
            seen=f"{size(round(each.now))}/s now; copies are placed {_placed_for(each)}",
            remedy="`rhinoctl check --apply` takes what is measured then, and the next deployment"
            " restarts the controller with it; or say it in the inventory: `bandwidth_mb_s`",
        )
        for each in drifts
    )


def _placed_for(drift: Drift) -> str:
    if drift.kept is None:
        return "as if it were as fast as the fastest"
    return f"for {size(round(drift.kept))}/s, as measured {ago(drift.days)}"


def _same(facts: Mapping[str, HostFacts]) -> dict[str, list[str]]:
    """Hosts whose machine id another has that comes before."""
    names: dict[str, list[str]] = {}
    for name, each in facts.items():
        if each.machine_id:
            names.setdefault(each.machine_id, []).append(name)
    return {name: [o for o in same if o != name] for same in names.values() for name in same[1:]}


def _system(part: Part, facts: HostFacts) -> Iterator[Judged]:
    known = facts.system == "Linux"
    libc = _version(facts.libc.removeprefix("glibc "))
    fit = known and facts.libc.startswith("glibc") and libc >= GLIBC_MIN
    yield (
        "platform",
        Verdict.PASS if fit else Verdict.FAIL,
        f"{facts.system} {facts.machine}, {facts.libc or 'another C library than glibc'}",
        "" if fit else f"use a Linux with glibc {_dotted(GLIBC_MIN)} or later",
    )
    newest = max(facts.pythons, default=None)
    fit = fit_python(facts) is not None
    yield (
        "python",
        Verdict.PASS if fit else Verdict.FAIL,
        f"{_dotted(newest[0])} at {newest[1]}" if newest is not None else "none was found",
        "" if fit else f"install Python {_dotted(PYTHON_MIN)} or later; no package of it is needed",
    )
    if part.sudo and facts.uid:
        yield (
            "user",
            Verdict.PASS if facts.sudo else Verdict.FAIL,
            f"{facts.user}, {'with' if facts.sudo else 'without'} sudo that asks nothing",
            "" if facts.sudo else "allow it without a password (NOPASSWD), or ssh.sudo: false",
        )
    else:
        yield "user", Verdict.PASS, facts.user, ""
    off = abs(facts.clock_ahead_s) - facts.clock_error_s
    bad = Verdict.FAIL if off > CLOCK_FAIL_S else Verdict.WARN
    way = "ahead of ours" if facts.clock_ahead_s > 0 else "behind ours"
    yield (
        "clock",
        bad if off > CLOCK_WARN_S else Verdict.PASS,
        f"{abs(facts.clock_ahead_s):.1f} s {way}" if off > CLOCK_WARN_S else "as ours",
        "set it, and keep it by NTP" if off > CLOCK_WARN_S else "",
    )
    yield ("temporary files", *_temporary(part, facts))


def _temporary(part: Part, facts: HostFacts) -> tuple[Verdict, str, str]:
    """Nothing of ours is executed there. Spark's libraries are, wherever its executors run."""
    if facts.temp == "no":
        remedy = "`rhinoctl verify --deep` needs one: make /tmp writable for the account"
        return Verdict.WARN, "no directory can be written to", remedy
    if facts.temp == "noexec" and part.is_worker:
        seen = "not executed in /tmp: no matter to us, but Spark's Zstandard and Snappy would be"
        remedy = (
            "unless Spark has another directory: -Djava.io.tmpdir=DIR, docs/operations/check.md"
        )
        return Verdict.WARN, seen, remedy
    seen = "can be written" if facts.temp == "yes" else "not executed: nothing of ours would be"
    return Verdict.PASS, seen, ""


def _service(part: Part, facts: HostFacts, ours: Ours) -> Iterator[Judged]:
    if not lacks_linger(part.sudo, facts):
        kind = choose_kind(facts, sudo=part.sudo)
        yield "service", Verdict.PASS, SERVICES[kind], ""
        return
    remedy = (
        f"`rhinoctl check --apply` lets {facts.user} linger, where the host allows that; or a"
        f" person with root: `sudo loginctl enable-linger {facts.user}` there"
    )
    if ours.installed:
        remedy += "; then `rhinoctl restart`"
    seen = f"supervised, not started with the host: {facts.user} does not linger"
    yield "service", Verdict.WARN, seen, remedy


def lacks_linger(sudo: bool, facts: HostFacts) -> bool:
    """Whether services could be units if the account lingered."""
    return choose_kind(facts, sudo=sudo) is Kind.SUPERVISED and facts.systemd


def _foreign(part: Part, ours: Ours) -> Iterator[Judged]:
    if ours.foreign:
        yield (
            "cluster",
            Verdict.FAIL,
            f"{part.install_dir} is of cluster {ours.foreign}, which was not deployed from here",
            "name another `install_dir`, or type this where it was deployed",
        )


def _resources(part: Part, facts: HostFacts) -> Iterator[Judged]:
    wanted = part.memory_bytes or part.slots * part.instance_bytes
    verdict, remedy = Verdict.PASS, ""
    if part.memory_bytes > facts.memory_bytes:
        verdict, remedy = Verdict.FAIL, "lower limits.memory_mb of the inventory"
    elif wanted > facts.memory_free_bytes:
        verdict = Verdict.WARN
        remedy = f"{size(wanted)} may be taken: make the caches smaller, or give it fewer slots"
    seen = f"{size(facts.memory_bytes)}, {size(facts.memory_free_bytes)} available"
    yield "memory", verdict, seen, remedy
    few = part.cpus > facts.cpus
    yield (
        "processors",
        Verdict.WARN if few else Verdict.PASS,
        str(facts.cpus),
        f"limits.cpus is {part.cpus:g}: it bounds nothing" if few else "",
    )
    files = facts.open_files
    poor = files is not None and files < FILES_WARN
    bad = files is not None and files < FILES_FAIL
    yield (
        "open files",
        Verdict.FAIL if bad else Verdict.WARN if poor else Verdict.PASS,
        "no limit" if files is None else str(files),
        f"raise the account's hard limit to {FILES_WARN:,} (nofile in limits.conf)" if poor else "",
    )


def _directories(part: Part, facts: HostFacts, ours: Ours) -> Iterator[Judged]:
    by_path = {each.path: each for each in facts.directories}
    for path in (part.install_dir, *part.disks):
        there, state = by_path[path], path != part.install_dir
        if state and path in ours.known and there.missing:
            remedy = "mount its disk; if its state is lost for good, make it by hand"
            yield f"directory {path}", Verdict.FAIL, "it was there and is gone", remedy
        elif path in ours.strange:
            seen = "there is something in it, and this cluster had no state there"
            yield f"directory {path}", Verdict.FAIL, seen, STRANGE
        else:
            yield from _directory(part, there, state=state, root=not facts.uid)
    yield from _apart([by_path[path] for path in part.disks])


def _directory(part: Part, there: DirectoryFacts, *, state: bool, root: bool) -> Iterator[Judged]:
    check = f"directory {there.path}"
    if there.is_file:
        seen = "it, or what is to be above it, is a file, or a link to nothing"
        yield check, Verdict.FAIL, seen, "name a directory"
        return
    if there.read_only:
        where = "" if there.mount in ("", there.there) else f", with all of {there.mount}"
        remedy = (
            f"mount {there.mount or 'it'} writable, or name another directory; a disk with errors"
            " is mounted so by the system itself: see `dmesg`"
        )
        yield check, Verdict.FAIL, f"{there.there} is mounted read-only{where}", remedy
        return
    if not there.writable and (root or not part.sudo):
        remedy = "make it for the account, or install with ssh.sudo: true"
        if root:
            remedy = "name a directory that root may write in: see `lsattr -d` and `mount` there"
        yield check, Verdict.FAIL, f"{there.there} cannot be written to", remedy
        return
    if there.type in FLEETING_TYPES | REMOTE_TYPES and state:
        what = "is gone after a restart" if there.type in FLEETING_TYPES else "is over a network"
        remedy = "state belongs on a disk of the host itself"
        yield check, Verdict.WARN, f"its file system ({there.type}) {what}", remedy
    yield from _room(check, there)
    if not state:
        if there.writable and not there.executes:
            remedy = "name one on a file system that is mounted without noexec: install_dir"
            yield check, Verdict.FAIL, "nothing may be executed there", remedy
        return
    if there.writable and not there.links:
        verdict = Verdict.FAIL if part.require_hardlink else Verdict.WARN
        remedy = "name one on another file system; otherwise each checkpoint is a copy"
        yield check, verdict, f"its file system ({there.type}) makes no hard links", remedy
    if there.sync_s is not None and there.sync_s > SYNC_WARN_S:
        verdict = Verdict.FAIL if there.sync_s > SYNC_FAIL_S else Verdict.WARN
        remedy = "name a faster disk first: every batch waits for it"
        yield check, verdict, f"a sync takes {1000 * there.sync_s:.0f} ms", remedy


def _room(check: str, there: DirectoryFacts) -> Iterator[Judged]:
    space, inodes = there.space, there.inodes
    if space is not None:
        verdict = _below(space.free, SPACE_FAIL, SPACE_WARN)
        sync = "" if there.sync_s is None else f", a sync takes {1000 * there.sync_s:.1f} ms"
        remedy = "" if verdict is Verdict.PASS else "make room, or name another file system"
        above = f"not there yet; {there.there} has " if there.missing else ""
        yield check, verdict, f"{above}{size(space.free)} free of {size(space.whole)}{sync}", remedy
    if inodes is not None and inodes.free < INODES_WARN:
        verdict = _below(inodes.free, INODES_FAIL, INODES_WARN)
        remedy = "remove small files, or name another file system"
        yield check, verdict, f"{inodes.free} inodes are free", remedy


def _below(free: int, fail: int, warn: int) -> Verdict:
    return Verdict.FAIL if free < fail else Verdict.WARN if free < warn else Verdict.PASS


def _apart(disks: Sequence[DirectoryFacts]) -> Iterator[Judged]:
    """Several disks that are one."""
    mounts: dict[str, str] = {}
    for there in disks:
        if there.mount and there.mount in mounts and len(disks) > 1:
            yield (
                f"directory {there.path}",
                Verdict.WARN,
                f"is on one file system with {mounts[there.mount]}, mounted at {there.mount}",
                "see that its disk is mounted",
            )
        mounts.setdefault(there.mount, there.path)


def _ports(part: Part, facts: HostFacts, ours: Ours) -> Iterator[Judged]:
    for port in part.ports:
        if port in ours.listens:
            yield f"port {port}", Verdict.PASS, f"our {ours.listens[port]} listens there", ""
            continue
        taken = port in facts.ports_taken
        yield (
            f"port {port}",
            Verdict.FAIL if taken else Verdict.PASS,
            "somebody listens there" if taken else "free",
            "see who it is: `ss -ltnp`; or name another one under `ports`" if taken else "",
        )


def _spark(part: Part, facts: HostFacts) -> Iterator[Judged]:
    if not part.is_worker:
        return
    if not facts.spark:
        remedy = "start Spark's worker there; executors elsewhere reach an agent over the network"
        yield "spark", Verdict.WARN, "no Spark worker runs there", remedy
        return
    for version in facts.spark:
        fit = not version or _version(version) >= SPARK
        yield (
            "spark",
            Verdict.PASS if fit else Verdict.FAIL,
            f"a worker of Spark {version or 'of a version that it does not tell'} runs",
            "" if fit else f"use Spark {_dotted(SPARK)} or later",
        )


def _version(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (parts[0], parts[1]) if len(parts) == 2 else (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
