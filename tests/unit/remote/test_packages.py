"""What is needed on a host, and which files that is."""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from rhinoctl import errors
from rhinoctl.remote.packages import (
    OURS,
    Platform,
    closure,
    files_of,
    glibc_needed,
    our_files,
    platform_of,
    python_of,
)
from tests.fakes.facts import host

ROOT = Path(__file__).parents[3]
RHEL8 = Platform(
    system="linux", machine="aarch64", libc="glibc", libc_version=(2, 28), python=(3, 12)
)


class Package(Distribution):
    """A distribution as it would be installed."""

    def __init__(
        self,
        name: str,
        needs: Sequence[str] = (),
        tags: Sequence[str] = (),
        files: Mapping[str, Path] | None = None,
    ) -> None:
        wanted = "".join(f"Requires-Dist: {need}\n" for need in needs)
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{wanted}",
            "WHEEL": "".join(f"Tag: {tag}\n" for tag in tags),
            "RECORD": "".join(f"{file},,\n" for file in files or ()),
        }
        self._files = files or {}

    def read_text(self, filename: Any) -> str | None:
        return self._texts.get(str(filename))

    def locate_file(self, path: Any) -> Path:
        return self._files[str(path)]


def needed(platform: Platform, *packages: Package) -> tuple[list[str], list[str]]:
    there = {package.name: package for package in packages}

    def find(name: str) -> Distribution:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    found = closure("a", platform, find)
    return [each.name for each in found.found], [str(each) for each in found.absent]


def test_requirements_and_theirs_are_needed_once_and_those_of_extras_where_asked_for() -> None:
    a = Package("a", ["b>=1", "C.c[x]", "dev; extra == 'dev'"])
    b = Package("b", ["a", "d; python_version < '3.12'", "e; platform_machine == 'aarch64'"])
    c = Package("c-c", ["f; extra == 'x'", "g; extra == 'y'", "w; sys_platform == 'win32'"])
    assert needed(RHEL8, a, b, c) == (["a", "b", "c-c"], ["e", "f"])
    older = Platform(
        system="linux", machine="x86_64", libc="glibc", libc_version=(2, 28), python=(3, 11)
    )
    assert needed(older, a, b, c, Package("f")) == (["a", "b", "c-c", "f"], ["d"])


def test_what_is_installed_here_tells_the_glibc_that_it_needs() -> None:
    def need(*tags: str) -> tuple[int, int] | None:
        return glibc_needed(Package("a", tags=tags))

    assert need("py3-none-any") == (0, 0)
    assert need("cp311-abi3-manylinux_2_34_x86_64") == (2, 34)
    assert need("cp311-cp311-manylinux2014_x86_64", "cp311-cp311-manylinux_2_28_x86_64") == (2, 17)
    assert need("cp311-cp311-linux_x86_64") is None
    assert need() is None


def test_files_but_for_scripts_caches_and_what_tells_where_they_came_from(tmp_path: Path) -> None:
    names = ["b/__init__.py", "b/__pycache__/x.pyc", "../../../bin/b", "b-1.dist-info/RECORD"]
    names += ["b-1.dist-info/METADATA", "b-1.dist-info/direct_url.json", "b/tests/t.py"]
    for name in names:
        Path(tmp_path, name.replace("/", "_")).touch()
    places = {name: Path(tmp_path, name.replace("/", "_")) for name in names}
    found = [entry.path for entry in files_of(Package("b", files=places))]
    assert found == ["site/b/__init__.py", "site/b-1.dist-info/METADATA", "site/b/tests/t.py"]
    places["b/gone.py"] = tmp_path / "gone"
    with pytest.raises(errors.EnvironmentNotBuilt, match="gone"):
        list(files_of(Package("b", files=places)))
    bulky = {"numpy/tests/t.py": places["b/__init__.py"], "numpy/a.py": places["b/__init__.py"]}
    assert [entry.path for entry in files_of(Package("numpy", files=bulky))] == ["site/numpy/a.py"]


def test_our_packages_are_those_of_the_distribution() -> None:
    setup = (ROOT / "setup.py").read_text()
    data = set(re.findall(r'"(rhinoctl_data\.\w+)"', setup))
    assert set(OURS) == data | {"rhinoctl", "rhino_agent"}
    found = {entry.path for entry in our_files()}
    assert {"site/rhinoctl/remote/packages.py", "site/rhino_agent/__main__.py"} <= found
    assert "site/rhinoctl_data/templates/host_facts.sh" in found
    assert not any("__pycache__" in path for path in found)
    with pytest.raises(errors.EnvironmentNotBuilt, match="rhinoctl_gone"):
        list(our_files(["rhinoctl_gone"]))


def test_a_host_s_platform_is_that_of_its_newest_interpreter() -> None:
    pythons = (((3, 9), "/usr/bin/python3"), ((3, 12), "/usr/bin/python3.12"))
    there = host(pythons=pythons, machine="aarch64", libc="glibc 2.28")
    assert platform_of(there) == RHEL8
    assert python_of(there) == ((3, 12), "/usr/bin/python3.12")
    assert str(RHEL8) == "linux-aarch64-glibc2.28-python3.12"


@pytest.mark.parametrize(
    "changes",
    [{"pythons": pythons} for pythons in ((), (((3, 9), "/usr/bin/python3"),))]
    + [{"libc": libc} for libc in ("", "glibc 2.17", "musl 1.2")]
    + [{"system": "Darwin"}],
)
def test_a_host_on_which_nothing_would_run_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(errors.UnsupportedHost):
        platform_of(host(**changes))
