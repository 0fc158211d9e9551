"""Files of TLS: what is wrong with them is said at the start, by the file's name."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rhinoctl.config.authority import CERTIFICATE_DAYS, make_authority
from rhinoctl.errors import CertificateRefused
from rhinoctl.protocol import codec
from rhinoctl.wire.certificates import read_credentials, read_tls, ssl_context
from rhinoctl.wire.credentials import Credentials, TlsFiles
from rhinoctl.wire.secret import Secret
from tests.fakes.tls import certified, files_of

OURS = make_authority("prod")
TLS = certified(OURS)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return files_of(TLS, tmp_path)


def test_credentials_are_read(files: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    token_file = str(tmp_path / "token")
    assert read_credentials(token_file, None) == Credentials(Secret("hunter2"))
    assert read_credentials(token_file, files) == Credentials(Secret("hunter2"), TLS)


def test_the_names_of_files_are_settings(files: TlsFiles) -> None:
    assert codec.loads(TlsFiles, codec.dumps(files)) == files


def test_credentials_travel_and_are_not_shown() -> None:
    credentials = Credentials(Secret("hunter2"), TLS)
    copied = pickle.loads(pickle.dumps(credentials))
    assert copied == credentials
    assert hash(copied) == hash(credentials)
    shown = f"{copied} {copied!r}"
    assert "hunter2" not in shown
    assert "PRIVATE" not in shown
    assert copied != replace(credentials, tls=None)


def refuse(files: TlsFiles, *, now: datetime | None = None) -> str:
    with pytest.raises(CertificateRefused) as refused:
        read_tls(files, now=now)
    return refused.value.message


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_text(""),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text(path.read_text()[:120]),
    ],
    ids=["missing", "empty", "bytes", "cut off"],
)
@pytest.mark.parametrize("which", ["ca", "certificate", "key"])
def test_a_file_that_cannot_be_read_is_named(files: TlsFiles, which: str, damage: Damage) -> None:
    path = getattr(files, which)
    damage(Path(path))
    assert path in refuse(files)


def test_a_certificate_of_another_cluster_is_named(files: TlsFiles) -> None:
    other = certified(make_authority("prod"))
    Path(files.certificate).write_text(other.certificate)
    Path(files.key).write_text(other.key.reveal())
    assert files.certificate in refuse(files)


def test_the_key_of_another_is_named(files: TlsFiles) -> None:
    Path(files.key).write_text(certified(OURS).key.reveal())
    assert files.key in refuse(files)


def test_a_key_for_everybody_is_refused(files: TlsFiles) -> None:
    Path(files.key).chmod(0o604)
    assert files.key in refuse(files)
    Path(files.key).chmod(0o640)
    assert read_tls(files) == TLS


def test_one_that_has_expired_is_named(files: TlsFiles) -> None:
    later = datetime.now(UTC) + timedelta(days=CERTIFICATE_DAYS + 1)
    assert files.certificate in refuse(files, now=later)


def test_a_client_checks_its_own_files_first(files: TlsFiles) -> None:
    assert ssl_context(files).check_hostname
    Path(files.key).write_text(certified(OURS).key.reveal())
    with pytest.raises(CertificateRefused):
        ssl_context(files)
