"""Golden files: transcripts of commands in ``tests/cli/golden``, compared letter by letter.

After a wanted change of help, tables or messages: ``pytest tests/cli --update-golden``, then read
the diff. Text that changes from run to run is replaced before it is compared.
"""

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rhinoctl.cli import main
from rhinoctl.protocol import codec
from tests.fakes.controller import TOKEN, FakeController

GOLDEN = Path(__file__).parent / "golden"

COLUMNS = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@dataclass(frozen=True)
class Ended:
    """A command that was run; `exit_code` is what the shell would see."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    def transcript(self) -> str:
        parts = [f"$ rhinoctl {shlex.join(self.argv)}"]
        if self.stdout:
            parts.append(self.stdout.rstrip("\n"))
        if self.stderr:
            parts += ["--- stderr", self.stderr.rstrip("\n")]
        parts.append(f"--- exit code {self.exit_code}")
        return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines()) + "\n"


Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("RHINO_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(name, str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    """A controller of canned answers, to which commands talk by default."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    with FakeController(tmp_path) as running:
        (directory / "token").write_text(TOKEN)
        location = {"controller": running.address, "token_file": str(directory / "token")}
        (directory / "cluster.json").write_bytes(codec.dumps(location))
        monkeypatch.setenv("RHINO_CONTROLLER", str(directory))
        yield running


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run_command(*argv: str) -> Ended:
        capfd.readouterr()
        exit_code = main(argv)
        out, err = capfd.readouterr()
        return Ended(argv, int(exit_code), out, err)

    return run_command


@pytest.fixture
def interrupted(run: Run) -> Iterator[Run]:
    """Run a command as from a terminal: an answer may send this process SIGINT."""
    # A shell ignores SIGINT in what it runs in the background, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield run
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, Ended], None]:
    """Compare a transcript with the golden file of a name."""

    def compare(name: str, ended: Ended) -> None:
        text = ended.transcript().replace(str(tmp_path), "TMP")
        text = re.sub(r"\d+\.\d s(?=, )|\d{6,}\.\d s", "N s", text)
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden", default=False):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        expected = path.read_text("utf-8") if path.exists() else ""
        assert text == expected, f"not as in {path.name}: pytest tests/cli --update-golden"

    return compare
