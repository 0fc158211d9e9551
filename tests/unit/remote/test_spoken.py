"""What releases say of themselves, and which may follow which."""

from itertools import product
from pathlib import Path

import pytest

from rhinoctl import __version__
from rhinoctl.protocol import versions
from rhinoctl.remote.deployed import ask_deployed
from rhinoctl.remote.spoken import FILE, OURS, Spoken, obstacle, spoken_by
from tests.fakes.local_host import LocalHost

OLD = Spoken(version="0.1.0")
NEXT = Spoken(version="0.2.0", protocol=2, format=2)
LATER = Spoken(version="0.3.0", protocol=3, oldest_protocol=2, format=3, oldest_format=2)


def test_this_release_says_what_it_speaks() -> None:
    assert OURS.version == __version__
    assert OURS.protocol == versions.PROTOCOL
    assert OURS.format == versions.FORMAT
    assert spoken_by("0.1.0-abc", OURS.text().splitlines()) == OURS


def test_a_release_without_a_file_is_of_the_first_protocol() -> None:
    assert spoken_by("0.1.0-abc") == OLD


def test_what_a_later_release_says_more_is_passed_over() -> None:
    lines = [*NEXT.text().splitlines(), "feature zeal", "", "odd", "oldest_format x"]
    assert spoken_by("0.2.0-abc", lines) == NEXT


def test_a_host_tells_what_its_releases_speak(tmp_path: Path) -> None:
    for name, text in (("0.2.0-b", NEXT.text()), ("0.1.0-a", "")):
        release = tmp_path / "versions" / name
        release.mkdir(parents=True)
        if text:
            (release / FILE).write_text(text)
    told = ask_deployed(LocalHost(), str(tmp_path), (), ())
    assert told.releases == {"0.1.0-a": OLD, "0.2.0-b": NEXT}


MAY = {(OLD, NEXT), (NEXT, LATER)}


@pytest.mark.parametrize(("there", "ours"), list(product((OLD, NEXT, LATER), repeat=2)))
def test_the_next_one_may_follow_and_none_further_on(there: Spoken, ours: Spoken) -> None:
    found = obstacle(there, ours)
    assert (found is None) is (there == ours or (there, ours) in MAY)
    assert found is None or (found.why and found.remedy)
    assert (obstacle(there, ours, back=True) is None) is (found is None)  # formats differ


def test_back_where_formats_are_the_same_and_the_newer_one_understands() -> None:
    newer = Spoken(version="0.2.0", protocol=2)
    assert obstacle(newer, OLD) is not None
    assert obstacle(newer, OLD, back=True) is None
    deaf = Spoken(version="0.2.0", protocol=2, oldest_protocol=2)
    assert obstacle(deaf, OLD, back=True) is not None
    assert obstacle(Spoken(version="0.1.9"), Spoken(version="0.1.10")) is None
