"""The process that makes digests, and what an agent hears of it."""

import sys
import time
from pathlib import Path

from rhino_agent.digests import Digested, ProcessDigester
from rhinoctl.state.digests import logical_digest
from rhinoctl.state.rocks import RocksStores
from tests.unit.state.test_digests import written

WAIT_S = 30.0


def outcome(digester: ProcessDigester) -> Digested:
    deadline = time.monotonic() + WAIT_S
    while (found := digester.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_one_process_digests_one_checkpoint_after_the_other(tmp_path: Path) -> None:
    written(RocksStores(), tmp_path / "a", [range(500)])
    expected = logical_digest([(b"%06d" % n, b"%06d" % n * 20) for n in range(500)])
    digester = ProcessDigester()
    try:
        for _ in range(2):
            digester.begin(str(tmp_path / "a.c"))
            found = outcome(digester)
            assert (found.digest, found.entries, found.fault) == (*expected, "")
        digester.begin(str(tmp_path / "nothing"))
        assert outcome(digester).fault
        (table,) = (tmp_path / "a.c").glob("*.sst")
        table.write_bytes(table.read_bytes()[:-60])
        digester.begin(str(tmp_path / "a.c"))
        assert outcome(digester).corrupt
    finally:
        digester.end()


def test_a_process_that_ends_is_a_fault_and_the_next_one_is_another(tmp_path: Path) -> None:
    for program in ("import sys; sys.stdin.readline()", "print('no JSON'); input()"):
        digester = ProcessDigester((sys.executable, "-c", program))
        for _ in range(2):
            digester.begin(str(tmp_path))
            found = outcome(digester)
            assert found.fault
            assert not found.corrupt
            digester.end()
