"""Reading the files of TLS, once, at the start: what is wrong with them is said then, by name.

Later, a peer that refuses a certificate says little (`rhinoctl.wire.exchange`).
"""

import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from rhinoctl.errors import CertificateRefused
from rhinoctl.wire.credentials import Credentials, Tls, TlsFiles
from rhinoctl.wire.secret import Secret, read_token

RENEW = "have `rhinoctl deploy` issue it anew, or name the files of this cluster"


def read_credentials(token_file: str, tls: TlsFiles | None) -> Credentials:
    """What a process with such settings has. Raises CertificateRefused and Unauthenticated."""
    return Credentials(read_token(token_file), None if tls is None else read_tls(tls))


def read_tls(files: TlsFiles, *, now: datetime | None = None) -> Tls:
    """The files' contents. Raises CertificateRefused, naming the file, for one that cannot be read,
    a certificate that this authority has not signed or whose time is over, and a key that is
    another's or for everybody to read."""
    tls = Tls(
        ca=_text(files.ca),
        certificate=_text(files.certificate),
        key=Secret(_text(files.key)),
    )
    moment = datetime.now(UTC) if now is None else now
    authority = _certificate(files.ca, tls.ca)
    certificate = _certificate(files.certificate, tls.certificate)
    for path, each in ((files.ca, authority), (files.certificate, certificate)):
        if moment > each.not_valid_after_utc:
            raise _refused(path, f"it expired on {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError) as fault:
        raise _refused(files.certificate, f"the authority in {files.ca} has not signed it") from (
            fault
        )
    if Path(files.key).stat().st_mode & stat.S_IROTH:
        raise _refused(files.key, "everybody on this host may read it; it should have mode 0600")
    if _public(files.key, tls.key) != certificate.public_key():
        raise _refused(files.key, f"it is not the key of {files.certificate}")
    return tls


def ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """For a client of HTTPS: it shows its certificate, and trusts the cluster's authority only.

    Raises what `read_tls` raises.
    """
    tls = read_tls(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=tls.ca)
    context.load_cert_chain(files.certificate, files.key)
    return context


def _text(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as fault:
        raise _refused(path, str(fault)) from fault


def _certificate(path: str, text: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(text.encode())
    except ValueError as fault:
        raise _refused(path, "it has no certificate in PEM form") from fault


def _public(path: str, key: Secret) -> object:
    try:
        return serialization.load_pem_private_key(key.reveal().encode(), None).public_key()
    except (TypeError, ValueError) as fault:
        raise _refused(path, "it has no private key in PEM form without a passphrase") from fault


def _refused(path: str, why: str) -> CertificateRefused:
    return CertificateRefused(f"{path} cannot be used: {why}", remedy=RENEW)
