"""A cluster's file: written whole, read strictly, changed by one at a time."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.config import cluster as config
from rhinoctl.control.client import locate_controller
from rhinoctl.protocol import codec


def a_cluster(directory: Path) -> config.ClusterFile:
    new = config.new_cluster(directory, cache_mb=1, buffer_mb=2)
    return replace(config.with_workers(new, directory, 2), processes={"controller": (12, 34)})


def test_what_is_written_is_read_and_located(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    assert config.read_cluster(tmp_path) is None
    config.write_cluster(tmp_path, cluster)
    assert config.read_cluster(tmp_path) == cluster
    located = locate_controller(str(tmp_path))
    assert located[:2] == (cluster.controller, cluster.token_file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.json"]


def test_two_clusters_have_two_identities(tmp_path: Path) -> None:
    assert a_cluster(tmp_path).cluster != a_cluster(tmp_path).cluster


def test_the_token_is_for_this_user_only_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "token"
    config.make_token(str(path))
    token = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config.make_token(str(path))
    assert path.read_text() == token


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"format": 2, "version": "9.0"}', '{"format": 1}']
)
def test_what_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(errors.ForeignManifest):
        config.read_cluster(tmp_path)
    assert (tmp_path / "cluster.json").read_text() == text


def test_a_field_of_another_program_is_refused(tmp_path: Path) -> None:
    image = {**codec.to_json(a_cluster(tmp_path)), "colour": "red"}
    (tmp_path / "cluster.json").write_bytes(codec.dumps(image))
    with pytest.raises(errors.ForeignManifest):
        config.read_cluster(tmp_path)


def test_one_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "on the way"
    with config.claimed(directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        with pytest.raises(errors.Busy), config.claimed(directory):
            pass
    with config.claimed(directory):
        pass


@pytest.mark.parametrize("place", ["a file/cluster", "a file"])
def test_a_directory_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(errors.UnwritableDirectory), config.claimed(tmp_path / place):
        pass


def test_a_directory_that_refuses(tmp_path: Path) -> None:
    """Root may write everywhere but in the kernel's own directories."""
    with pytest.raises(errors.UnwritableDirectory):
        config.write_cluster(Path("/proc/sys"), a_cluster(tmp_path))


def test_the_version_counts_up_to_its_second_number(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    config.check_version(tmp_path, replace(cluster, version=f"{cluster.version}.post1"))
    with pytest.raises(errors.ForeignManifest):
        config.check_version(tmp_path, replace(cluster, version="0.0.9"))
