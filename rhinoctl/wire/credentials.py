"""What a process shows to its peers, and by what it knows them: the cluster's token and its TLS."""

from dataclasses import dataclass

from rhinoctl.wire.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files: the cluster's authority, a certificate that it has signed, its key."""

    ca: str
    certificate: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What is in `TlsFiles`, read and checked by `rhinoctl.wire.certificates.read_tls`."""

    ca: str
    certificate: str
    key: Secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token, and TLS for addresses with ``grpc+tls``; those without TLS need none.

    They can be pickled, since they travel to Spark tasks with their closure, and are not shown.
    """

    token: Secret
    tls: Tls | None = None
