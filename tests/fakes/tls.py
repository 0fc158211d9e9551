"""Certificates for the tests, as PEM and as files."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rhinoctl.config.authority import Authority, issue
from rhinoctl.wire.credentials import Tls, TlsFiles

HERE = ("localhost", "127.0.0.1")


def certified(
    authority: Authority, hosts: Sequence[str] = HERE, *, now: datetime | None = None
) -> Tls:
    """A certificate of a process on such hosts, issued `now`."""
    issued = issue(authority, name="w1", role="agent", hosts=hosts, now=now)
    return Tls(
        ca=authority.certificate.decode(), certificate=issued.certificate.decode(), key=issued.key
    )


def files_of(tls: Tls, directory: Path) -> TlsFiles:
    """The same as files in a directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(
        ca=str(directory / "ca.pem"),
        certificate=str(directory / "certificate.pem"),
        key=str(directory / "key.pem"),
    )
    Path(files.ca).write_text(tls.ca)
    Path(files.certificate).write_text(tls.certificate)
    Path(files.key).write_text(tls.key.reveal())
    Path(files.key).chmod(0o600)
    return files
