"""The cluster's own certificate authority, and the certificates that it issues. No files, no state.

Each cluster has one authority, which signs certificates of processes and people and nothing else
(path length 0). A certificate is trusted for whose signature it has, so two clusters of one name do
not trust each other. Whoever has the authority's key is the cluster: it stays where `rhinoctl
deploy` is typed, and no host gets it.

A certificate's subject is its cluster (O), its role (OU) and its name (CN), for people who look at
it; what a peer checks is the signature, the time, and that the host is among the alternative names.
"""

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rhinoctl.errors import UsageError
from rhinoctl.wire.secret import Secret

AUTHORITY_DAYS = 3650
"""A new authority means new certificates everywhere at once, so it is not to be met by surprise."""

CERTIFICATE_DAYS = 1095
"""Three years: longer than a release is in use, and every `rhinoctl deploy` may issue anew."""

BEFORE = timedelta(hours=1)
"""Certificates hold from so long before they were made: clocks of hosts differ by minutes."""

NAME_CHARACTERS_MAX = 64
"""X.509's bound on each part of a subject; a longer one is cut, as only people read it."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's certificate and its key, both PEM."""

    certificate: bytes
    key: Secret


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that an authority has signed, and its key, both PEM."""

    certificate: bytes
    key: Secret


def make_authority(cluster: str, *, now: datetime | None = None) -> Authority:
    """A new authority for a cluster; `now` is the time from which it holds."""
    start = _now(now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(cluster, "authority", f"rhinoctl {cluster}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    made = (
        _builder(subject, subject, key, start, start + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(_pem(made), _key_pem(key))


def issue(
    authority: Authority,
    *,
    name: str,
    role: str,
    hosts: Sequence[str],
    now: datetime | None = None,
) -> Issued:
    """A certificate with a key of its own for `name`, which others reach as one of `hosts`.

    `hosts` are host names and addresses (v4, v6). With some it may serve and call; without any, as
    that of a person or of a Spark driver, it may call only. It never outlives its authority, and is
    renewed by issuing another. Raises UsageError for a host that no certificate can name.
    """
    start = _now(now)
    parent = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key.reveal().encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(start + timedelta(days=CERTIFICATE_DAYS), parent.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    known_as = parent.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    cluster = parent.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value
    builder = (
        _builder(_subject(str(cluster), role, name), parent.subject, key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known_as),
            critical=False,
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(each) for each in dict.fromkeys(hosts)])
        builder = builder.add_extension(names, critical=False)
    return Issued(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(key))


def expires(certificate: bytes) -> datetime:
    """When a certificate ends to hold, in UTC. Raises UsageError for what is no PEM of one."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as fault:
        raise UsageError(
            f"this is no certificate: {fault}", remedy="name a file with a certificate in PEM form"
        ) from fault


def _now(now: datetime | None) -> datetime:
    return datetime.now(UTC) if now is None else now


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - BEFORE)
        .not_valid_after(end)
        .add_extension(identifier, critical=False)
    )


def _subject(cluster: str, role: str, name: str) -> x509.Name:
    parts = {
        NameOID.ORGANIZATION_NAME: cluster,
        NameOID.ORGANIZATIONAL_UNIT_NAME: role,
        NameOID.COMMON_NAME: name,
    }
    return x509.Name(
        [x509.NameAttribute(kind, text[:NAME_CHARACTERS_MAX]) for kind, text in parts.items()]
    )


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):  # a name, then
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not name:
        raise UsageError(
            f"{host!r} cannot be named in a certificate",
            remedy="give the host a name of letters, digits, hyphens and dots, or its address",
        )
    return x509.DNSName(name)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> Secret:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Secret(pem.decode())
