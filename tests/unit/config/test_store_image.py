"""What runs beside a deployed controller's store: an image by stdout, one by stdin, and errors as a
line that the other end reads."""

import subprocess
import sys
from pathlib import Path

from rhinoctl.config import backup
from rhinoctl.control.registry import Registry
from rhinoctl.ops.endings import problem_in
from rhinoctl.state.sqlite import SqliteStore


def run(*argv: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "rhinoctl.config.store_image", *argv]
    return subprocess.run(line, input=given, capture_output=True, check=False)


def refused(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode != 0
    problem = problem_in(done.stderr.decode().rstrip().rpartition("\n")[2])
    assert problem is not None
    return problem.code


def test_an_image_goes_out_and_comes_back_while_no_controller_runs(tmp_path: Path) -> None:
    path = tmp_path / backup.STORE
    store = SqliteStore(str(path))
    claim = Registry(store).claim
    image = run("image", str(path)).stdout
    assert backup.claim_in(image, path, store="store") == claim
    assert refused(run("put", str(path), given=image)) == "already-running"
    store.close()
    before = path.read_bytes()
    assert refused(run("put", str(path), given=b"no store")) == "corrupt-file"
    assert path.read_bytes() == before
    assert run("put", str(path), given=image).returncode == 0
    assert path.read_bytes() == image
    assert (tmp_path / f"{backup.STORE}.replaced").read_bytes() == before


def test_there_is_no_image_of_what_is_not_there_or_no_store(tmp_path: Path) -> None:
    path = tmp_path / backup.STORE
    assert refused(run("image", str(path))) == "not-running"
    assert not path.exists()
    path.write_bytes(b"no store")
    assert refused(run("image", str(path))) == "corrupt-file"
