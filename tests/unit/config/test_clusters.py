"""What is kept of a cluster where it was deployed from: made once, renewed in time, private."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rhinoctl.config.authority import CERTIFICATE_DAYS
from rhinoctl.config.clusters import (
    API_ROLES,
    AUTHORITY,
    MEMBERS,
    RENEW_BEFORE,
    SEAT,
    ClusterHome,
    Member,
)
from rhinoctl.config.deployment import WIRE
from rhinoctl.errors import Busy, ForeignManifest

START = datetime(2026, 3, 14, tzinfo=UTC)


def home(directory: Path, days: float = 0.0) -> ClusterHome:
    return ClusterHome(directory / "clicks", "clicks", now=lambda: START + timedelta(days=days))


def test_all_of_it_is_made_once(tmp_path: Path) -> None:
    assert home(tmp_path).read() is None
    with home(tmp_path).claimed():
        made = home(tmp_path).make()
    assert made.identity.startswith("clicks-")
    assert set(made.tokens) == {WIRE, *API_ROLES}
    assert len(set(made.tokens.values())) == len(made.tokens)
    papers = home(tmp_path).papers_of("agent", "w1", ("w1", "10.0.0.1"), (WIRE,))
    again = home(tmp_path, days=30)
    assert again.make() == made
    assert again.papers_of("agent", "w1", ("w1", "10.0.0.1"), (WIRE,)) == papers
    assert set(papers.tokens) == {WIRE}


@pytest.mark.parametrize(
    ("hosts", "days"),
    [(("w1", "10.0.0.2"), 0), (("w1",), CERTIFICATE_DAYS - RENEW_BEFORE.days + 1)],
    ids=["another address", "its end is near"],
)
def test_another_certificate_is_issued_when_one_will_not_do(
    tmp_path: Path, hosts: tuple[str, ...], days: float
) -> None:
    with home(tmp_path).claimed():
        first = home(tmp_path).papers_of("agent", "w1", ("w1",), (WIRE,))
        second = home(tmp_path, days).papers_of("agent", "w1", hosts, (WIRE,))
    assert (second.certificate != first.certificate, second.ca) == (True, first.ca)
    assert home(tmp_path, days).papers_of("agent", "w1", hosts, (WIRE,)) == second


def test_a_certificate_of_an_authority_that_is_gone_is_issued_anew(tmp_path: Path) -> None:
    with home(tmp_path).claimed():
        first = home(tmp_path).papers_of("agent", "w1", ("w1",), (WIRE,))
        (tmp_path / "clicks" / AUTHORITY).unlink()
        second = home(tmp_path).papers_of("agent", "w1", ("w1",), (WIRE,))
    assert second.ca != first.ca
    assert second.certificate != first.certificate


@pytest.mark.parametrize("access", [False, True])
def test_keys_are_renewed_under_the_same_authority(tmp_path: Path, access: bool) -> None:
    there = home(tmp_path)
    with there.claimed():
        first = there.papers_of("agent", "w1", ("w1",), (WIRE, *API_ROLES))
        there.renew(access=access)
        second = there.papers_of("agent", "w1", ("w1",), (WIRE, *API_ROLES))
    assert (second.key != first.key, second.ca) == (True, first.ca)
    changed = {role for role in second.tokens if second.tokens[role] != first.tokens[role]}
    assert changed == (set(API_ROLES) if access else set())


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    with home(tmp_path).claimed():
        home(tmp_path).papers_of("agent", "w1", ("w1",), (WIRE,))
    for path in [tmp_path / "clicks", *(tmp_path / "clicks").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_one_command_at_a_time(tmp_path: Path) -> None:
    again = home(tmp_path).claimed()
    with home(tmp_path).claimed(), pytest.raises(Busy, match="cluster clicks"):
        again.__enter__()
    with home(tmp_path).claimed():
        assert home(tmp_path).make()


def test_what_is_damaged_or_of_another_format_is_refused(tmp_path: Path) -> None:
    with home(tmp_path).claimed():
        home(tmp_path).make()
    path = tmp_path / "clicks" / AUTHORITY
    for content in (b"", path.read_bytes().replace(b'"format":1', b'"format":2'), b"{}"):
        path.write_bytes(content)
        with pytest.raises(ForeignManifest, match=r"authority\.json cannot be used"):
            home(tmp_path).make()


def test_the_controller_has_its_seat_until_it_is_undeployed(tmp_path: Path) -> None:
    there = home(tmp_path)
    with there.claimed():
        assert there.seat() is None
        there.leave_seat()
        there.take_seat(Member(host="c1", machine="m1"))
        assert home(tmp_path).seat() == Member(host="c1", machine="m1")
        there.leave_seat()
    assert home(tmp_path).seat() is None
    (there.directory / SEAT).write_bytes(b"{")
    with pytest.raises(ForeignManifest, match=r"seat\.json"):
        there.seat()


def test_a_worker_is_a_member_until_it_is_undeployed(tmp_path: Path) -> None:
    there = home(tmp_path)
    with there.claimed():
        assert there.members() == {}
        there.join("w1", Member(host="h1", machine="m1"))
        there.join("w2", Member(host="h2", machine="m2"))
        there.join("w1", Member(host="h1", machine="m1"))
        assert home(tmp_path).members()["w1"] == Member(host="h1", machine="m1")
        there.leave("w1")
        there.leave("w9")
    assert set(home(tmp_path).members()) == {"w2"}
    (there.directory / MEMBERS).write_bytes(b"{")
    with pytest.raises(ForeignManifest, match=r"members\.json"):
        there.members()


def test_secrets_are_not_shown_and_what_is_forgotten_is_all_but_the_runs(tmp_path: Path) -> None:
    there = home(tmp_path)
    with there.claimed():
        made = there.make()
        papers = there.papers_of("operator", "operator", (), ("operator",))
        there.runs.mkdir()
        (there.runs / "1.json").touch()
        there.forget()
    shown = repr(made) + repr(papers)
    assert made.key not in shown
    assert not any(token in shown for token in made.tokens.values())
    left = {path.relative_to(there.directory).as_posix() for path in there.directory.rglob("*")}
    assert left == {"runs", "runs/1.json"}
