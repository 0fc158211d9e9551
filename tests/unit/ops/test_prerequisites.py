"""What is looked for before a Spark job is started."""

from pathlib import Path

import pytest

from rhinoctl.errors import MissingJava
from rhinoctl.ops.prerequisites import check_java, java_major


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_versions_of_java(text: str, major: int | None) -> None:
    assert java_major(text) == major


def java_that(directory: Path, script: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


def test_a_java_that_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java_that(tmp_path, "echo 'openjdk version \"21.0.1\"' >&2")
    assert check_java() == 21


@pytest.mark.parametrize("script", ["echo 'java version \"1.8.0\"' >&2", "exit 1", None])
def test_a_java_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if script is not None:
        java_that(tmp_path, script)
    with pytest.raises(MissingJava):
        check_java()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingJava):
        check_java()
