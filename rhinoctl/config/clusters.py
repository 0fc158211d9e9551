"""What the machine where `rhinoctl deploy` is typed keeps of a cluster: its secrets, once made.

A directory for each cluster, of mode 0700, every file in it 0600:

    authority.json   identity, certificate authority with its key, tokens
    issued/          each certificate with its key, and for which hosts it was issued
    members.json     which workers have been deployed, and on which machine each
    seat.json        on which machine the controller has been deployed
    former.json      machines that were let go with something of the cluster on them
    network.json     how fast the workers' networks are, as `rhinoctl check` measured it
    runs/            what each deployment did (`rhinoctl.config.runs`)
    cluster.json, …  access of whoever types commands here; `driver/` and `viewer/` likewise

Invariants:

1. The authority's key is here and nowhere else; hosts get certificates.
2. A certificate is issued once for a name and its hosts, so that a second deployment finds on the
   hosts what it would write; another is issued when those change, or its end is near.
3. A worker is a member, and the controller has its seat, from the first start until the host is
   undeployed: state, and the store, belong there.
4. Identity, authority and tokens are made together in one file: there are all or none.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rhinoctl.config import cluster as local
from rhinoctl.config.authority import Authority, expires, issue, make_authority
from rhinoctl.config.deployment import WIRE, Papers, Place, Role, holder, names_of
from rhinoctl.config.rates import Rates
from rhinoctl.errors import ForeignManifest
from rhinoctl.protocol import codec
from rhinoctl.wire.secret import Secret

FORMAT: Final = 1
AUTHORITY: Final = "authority.json"
MEMBERS: Final = "members.json"
SEAT: Final = "seat.json"
FORMER: Final = "former.json"
NETWORK: Final = "network.json"
RUNS: Final = "runs"

API_ROLES: Final = ("operator", "driver", "viewer")
"""Who may call the controller, each with a token of its own; see docs/operations/security.md."""

RENEW_BEFORE: Final = timedelta(days=60)
"""A certificate that ends sooner is issued anew by the next deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityFile:
    """What makes a cluster this one. `identity` is in manifests, logs and certificates."""

    format: int
    identity: str
    certificate: str
    key: str = field(repr=False)
    tokens: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedFile:
    """A certificate with its key, for which hosts it is, and the authority's digest."""

    authority: str
    hosts: tuple[str, ...]
    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Where a process was deployed: its host by the inventory, and the machine's id."""

    host: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A machine that was let go while it did not answer: what was deployed there, by its name and
    role, is there still when it is back."""

    name: str
    role: Role
    host: str
    machine: str


class ClusterHome:
    """The directory of a cluster; nothing of it is made before `make`."""

    def __init__(
        self,
        directory: Path,
        cluster: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.directory = directory
        self.cluster = cluster
        self._now = now

    @property
    def runs(self) -> Path:
        """Where the accounts of its runs are."""
        return self.directory / RUNS

    def claimed(self) -> AbstractContextManager[None]:
        """Be the only command that changes this cluster's hosts. Raises Busy."""
        return local.claimed(
            self.directory,
            holder=f"another command is at work on the hosts of cluster {self.cluster}",
            look="wait until it has ended, then look with `rhinoctl hosts list`",
        )

    def read(self) -> AuthorityFile | None:
        """The cluster's authority; None before its first deployment. Raises ForeignManifest."""
        path = self.directory / AUTHORITY
        try:
            image = codec.loads_image(path.read_bytes())
            if image.get("format") != FORMAT:
                raise codec.CodecError(f"it has format {image.get('format')}, not {FORMAT}")
            found: AuthorityFile = codec.from_json(AuthorityFile, image)
        except FileNotFoundError:
            return None
        except (OSError, codec.CodecError) as fault:
            raise ForeignManifest(
                f"{path} cannot be used: {fault}",
                remedy="use the version of rhinoctl that made it, or bring the file back from a"
                " copy: without it the hosts do not know this machine",
            ) from None
        return found

    def make(self) -> AuthorityFile:
        """The cluster's authority, made if there is none. Raises ForeignManifest and
        UnwritableDirectory."""
        known = self.read()
        if known is not None:
            return known
        identity = f"{self.cluster}-{secrets.token_hex(4)}"
        authority = make_authority(identity, now=self._now())
        made = AuthorityFile(
            format=FORMAT,
            identity=identity,
            certificate=authority.certificate.decode(),
            key=authority.key.reveal(),
            tokens={role: secrets.token_hex(32) for role in (WIRE, *API_ROLES)},
        )
        local.replace_file(self.directory / AUTHORITY, codec.dumps(made))
        return made

    def papers(self, place: Place, role: Role) -> Papers:
        """What a process of a host shows to others; the controller has the tokens of all roles."""
        names = names_of(place, role)
        return self.papers_of(role.value, holder(place, role), names, _tokens_of(role))

    def papers_of(
        self, role: str, name: str, hosts: Sequence[str], tokens: Sequence[str]
    ) -> Papers:
        """The certificate of a name and role, issued if there is none that will do, and tokens."""
        known = self.make()
        issued = self._issued(known, role, name, tuple(hosts))
        return Papers(
            ca=known.certificate.encode(),
            certificate=issued.certificate.encode(),
            key=issued.key.encode(),
            tokens={token: f"{known.tokens[token]}\n".encode() for token in tokens},
        )

    def _issued(
        self, known: AuthorityFile, role: str, name: str, hosts: tuple[str, ...]
    ) -> IssuedFile:
        path = self.directory / "issued" / f"{role}-{name}.json"
        authority = hashlib.sha256(known.certificate.encode()).hexdigest()
        there = _read_issued(path)
        same = there is not None and (there.authority, there.hosts) == (authority, hosts)
        if there is not None and same and self._holds(there.certificate):
            return there
        made = issue(
            Authority(known.certificate.encode(), Secret(known.key)),
            name=name,
            role=role,
            hosts=hosts,
            now=self._now(),
        )
        there = IssuedFile(
            authority=authority,
            hosts=hosts,
            certificate=made.certificate.decode(),
            key=made.key.reveal(),
        )
        with local.writing_in(path.parent):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        local.replace_file(path, codec.dumps(there))
        return there

    def renew(self, *, access: bool) -> None:
        """Forget all certificates, so that the next deployment issues new ones; with `access` the
        tokens of the API's roles are others, too. The token of the wire stays: those who have the
        old one would not be heard by those who have the new one. Raises UnwritableDirectory."""
        known = self.make()
        with local.writing_in(self.directory):
            for path in (self.directory / "issued").glob("*.json"):
                path.unlink()
        if access:
            tokens = {**known.tokens, **{role: secrets.token_hex(32) for role in API_ROLES}}
            made = replace(known, tokens=tokens)
            local.replace_file(self.directory / AUTHORITY, codec.dumps(made))

    def _holds(self, certificate: str) -> bool:
        return expires(certificate.encode()) - self._now() > RENEW_BEFORE

    def members(self) -> dict[str, Member]:
        """Workers that were deployed and not undeployed, by name. Raises ForeignManifest."""
        found: Mapping[str, Member] | None = self._kept(
            MEMBERS,
            Mapping[str, Member],
            "every worker that has state is in the inventory, on the machine that it was deployed"
            " on",
        )
        return dict(found or {})

    def join(self, worker: str, member: Member) -> None:
        """A worker has been deployed. Raises UnwritableDirectory."""
        self._write_members({**self.members(), worker: member})

    def leave(self, worker: str) -> None:
        """A worker has been undeployed. Raises UnwritableDirectory."""
        self._write_members({n: each for n, each in self.members().items() if n != worker})

    def _write_members(self, members: Mapping[str, Member]) -> None:
        if members != self.members():
            local.replace_file(self.directory / MEMBERS, codec.dumps(members))

    def seat(self) -> Member | None:
        """Where the controller was deployed, and not undeployed. Raises ForeignManifest."""
        found: Member | None = self._kept(
            SEAT, Member, "the inventory names the machine that the controller was deployed on"
        )
        return found

    def take_seat(self, seat: Member) -> None:
        """The controller has been deployed. Raises UnwritableDirectory."""
        if seat != self.seat():
            local.replace_file(self.directory / SEAT, codec.dumps(seat))

    def leave_seat(self) -> None:
        """The controller has been undeployed. Raises UnwritableDirectory."""
        with local.writing_in(self.directory):
            (self.directory / SEAT).unlink(missing_ok=True)

    def former(self) -> tuple[Former, ...]:
        """What was let go, and not undeployed since. Raises ForeignManifest."""
        found: tuple[Former, ...] | None = self._kept(
            FORMER, tuple[Former, ...], "nothing of the cluster is left on machines that it had"
        )
        return found or ()

    def deployed_on(self, name: str, role: Role) -> Member | None:
        """Where a process was deployed, and not undeployed. Raises ForeignManifest."""
        return self.seat() if role is Role.CONTROLLER else self.members().get(name)

    def let_go(self, name: str, role: Role, *, remembered: bool) -> None:
        """A process has its place no more, though it was not undeployed. `remembered`: it may be
        there still. Raises ForeignManifest and UnwritableDirectory."""
        there = self.deployed_on(name, role)
        if there is None:
            return
        if remembered:
            known = Former(name=name, role=role, host=there.host, machine=there.machine)
            self._write_former([*(each for each in self.former() if each != known), known])
        if role is Role.CONTROLLER:
            self.leave_seat()
        else:
            self.leave(name)

    def clear(self, machine: str, role: Role | None = None) -> None:
        """Nothing that was let go is on a machine any more, or is of a role that has a place there
        again. Raises UnwritableDirectory."""
        self._write_former(
            [
                each
                for each in self.former()
                if each.machine != machine or role not in (None, each.role)
            ]
        )

    def _write_former(self, former: Sequence[Former]) -> None:
        if tuple(former) != self.former():
            local.replace_file(self.directory / FORMER, codec.dumps(tuple(former)))

    def _kept(self, name: str, kind: Any, spare: str) -> Any:
        """What is in a file, None without it, which is as good if what `spare` says is so. Raises
        ForeignManifest."""
        path = self.directory / name
        try:
            return codec.loads(kind, path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, codec.CodecError) as fault:
            raise ForeignManifest(
                f"{path} cannot be used: {fault}",
                remedy=f"bring it back from a copy, or remove it if {spare}",
            ) from None

    def rates(self) -> Rates | None:
        """What was measured of the network; None if nothing was. Raises ForeignManifest."""
        found: Rates | None = self._kept(
            NETWORK, Rates, "it can be measured anew: `rhinoctl check --apply`"
        )
        return found

    def keep_rates(self, rates: Rates) -> None:
        """Keep what was measured, in the place of what was. Raises UnwritableDirectory."""
        local.replace_file(self.directory / NETWORK, codec.dumps(rates))

    def forget(self) -> None:
        """Remove all but the runs: the cluster's data are gone, so its identity ends."""
        with local.writing_in(self.directory):
            for path in sorted(self._below(), key=lambda each: len(each.parts), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()

    def _below(self) -> Iterator[Path]:
        for path in self.directory.rglob("*"):
            if path.relative_to(self.directory).parts[0] != RUNS:
                yield path


def blank_papers(role: Role) -> Papers:
    """Which papers a process has, without anything in them."""
    return Papers(ca=b"", certificate=b"", key=b"", tokens=dict.fromkeys(_tokens_of(role), b""))


def _tokens_of(role: Role) -> tuple[str, ...]:
    return (WIRE, *API_ROLES) if role is Role.CONTROLLER else (WIRE,)


def _read_issued(path: Path) -> IssuedFile | None:
    """What was issued; one that cannot be read is issued anew."""
    try:
        found: IssuedFile = codec.loads(IssuedFile, path.read_bytes())
    except (OSError, codec.CodecError):
        return None
    return found
