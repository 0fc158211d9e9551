"""An agent that is asked to end, as a process."""

import signal
import subprocess
import sys
from pathlib import Path

from rhino_agent.settings import AgentSettings, settings_bytes
from rhinoctl.protocol.ports import Address
from rhinoctl.wire.beacon import listening
from tests.integration.test_deploy import until
from tests.unit.wire.test_flight import OURS, PATIENT_S, half_a_request


def test_a_peer_without_a_network_does_not_hold_up_an_agent_that_ends(tmp_path: Path) -> None:
    """It is in the middle of a request, which is served until its deadline."""
    place = Address(f"grpc+unix://{tmp_path}/agent.sock")
    (tmp_path / "token").write_text(OURS.token.reveal())
    settings = AgentSettings(
        cluster="c",
        worker="w1",
        disk=str(tmp_path / "disk"),
        run=str(tmp_path),
        listen=place,
        token_file=str(tmp_path / "token"),
        cache_bytes=1 << 20,
        buffer_bytes=1 << 20,
        parent=0,
    )
    (tmp_path / "settings.json").write_bytes(settings_bytes(settings))
    argv = [sys.executable, "-m", "rhino_agent", str(tmp_path / "settings.json")]
    with subprocess.Popen(argv) as agent:
        try:
            until(lambda: listening(place))
            with half_a_request(place):
                agent.send_signal(signal.SIGTERM)
                assert agent.wait(PATIENT_S - 2.0) == 0
        finally:
            agent.kill()
