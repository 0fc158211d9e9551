"""Packages for another platform, by a real pip and an index that is a directory."""

import io
import zipfile
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rhinoctl import errors
from rhinoctl.remote.packages import Closure, Platform
from rhinoctl.remote.wheels import fault_of, fetched, pip_argv

ARM = Platform(
    system="linux", machine="aarch64", libc="glibc", libc_version=(2, 30), python=(3, 12)
)


def wheel(directory: Path, name: str, tag: str) -> None:
    """A wheel with one module in it."""
    content = {
        f"{name}.py": f"WHERE = {tag!r}\n",
        f"{name}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{name}-1.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n",
        f"{name}-1.dist-info/RECORD": "",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for path, text in content.items():
            file.writestr(path, text)
    (directory / f"{name}-1-{tag}.whl").write_bytes(data.getvalue())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def test_wheels_of_the_platform_are_taken_whatever_this_machine_is(
    index: Path, tmp_path: Path
) -> None:
    for tag in ("x86_64", "aarch64"):
        wheel(index, "there", f"cp312-cp312-manylinux_2_28_{tag}")
    wheel(index, "newer", "cp312-cp312-manylinux_2_17_aarch64")
    wheel(index, "newer", "cp312-cp312-manylinux_2_34_aarch64")
    needed = Closure((), (Requirement("there"), Requirement("newer>=1")))
    said: list[str] = []
    for _ in range(2):  # the second time from the cache
        found = {entry.path: entry.read() for entry in fetched(needed, ARM, tmp_path, said.append)}
        assert b"manylinux_2_28_aarch64" in found["site/there.py"]
        assert b"manylinux_2_17_aarch64" in found["site/newer.py"]
        assert "site/there-1.dist-info/METADATA" in found
    assert len(said) == 1


def test_a_missing_wheel_is_named_and_nothing_is_cached(index: Path, tmp_path: Path) -> None:
    wheel(index, "there", "cp312-cp312-manylinux_2_28_x86_64")
    with pytest.raises(errors.MissingWheel, match=r"there.*linux-aarch64-glibc2\.30-python3\.12"):
        list(fetched(Closure((), (Requirement("there"),)), ARM, tmp_path, print))
    assert list(tmp_path.iterdir()) == [index]


def test_versions_are_those_that_are_installed_here() -> None:
    argv = pip_argv(ARM, Path("site"), Path("pins"), [f"jinja2=={distribution('jinja2').version}"])
    platforms = [value for key, value in pairwise(argv) if key == "--platform"]
    assert (platforms[0], platforms[-1]) == ("manylinux_2_30_aarch64", "manylinux2014_aarch64")
    assert argv[argv.index("--python-version") + 1] == "3.12"
    assert "--only-binary=:all:" in argv
    assert argv[-1] == f"jinja2=={distribution('jinja2').version}"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ERROR: No matching distribution found for numpy==2", errors.MissingWheel),
        (
            "WARNING: Retrying … NewConnectionError(…)\n"
            "ERROR: No matching distribution found for numpy==2",
            errors.EnvironmentNotBuilt,
        ),
        ("/usr/bin/python: No module named pip", errors.EnvironmentNotBuilt),
        ("", errors.EnvironmentNotBuilt),
    ],
)
def test_no_network_is_not_a_missing_wheel(said: str, kind: type[errors.RhinoError]) -> None:
    assert type(fault_of(said, ARM)) is kind
