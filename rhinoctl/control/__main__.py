"""The controller as a process: `python -m rhinoctl.control SETTINGS`."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import uvicorn

from rhinoctl import limits
from rhinoctl.control.api import build
from rhinoctl.control.controller import Controller
from rhinoctl.control.settings import ControllerSettings, read_settings
from rhinoctl.errors import RhinoError, UnwritableDirectory
from rhinoctl.protocol import codec, views
from rhinoctl.state.locks import ControllerLock
from rhinoctl.state.sqlite import SqliteStore
from rhinoctl.wire.clock import SystemClock
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.points import STORE_POINTS, WIRE_POINTS, with_points
from rhinoctl.wire.secret import Secret

log = logging.getLogger("rhino.controller")


def serve(settings: ControllerSettings) -> None:
    """Run until SIGTERM, or until the parent is gone."""
    token = Secret(Path(settings.token_file).read_text().strip())
    lock = ControllerLock(f"{settings.store}.controller")
    lock.acquire()
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    store = with_points(_opened(settings.store), "controller", STORE_POINTS)
    wire = with_points(FlightWire(listen=None, token=token), "controller", WIRE_POINTS)
    controller = Controller(settings, clock=SystemClock(), wire=wire, store=store)
    server = _server(settings, controller, token)
    threading.Thread(target=server.run, name="api", daemon=True).start()
    log.info("controller-started pid=%d listen=%s", os.getpid(), settings.listen)
    try:
        while not stopping.is_set() and _wanted(settings.parent):
            controller.step(limits.CONTROLLER_WAIT_S)
    finally:
        server.should_exit = True
        wire.close()
        store.close()
        lock.release()


def _opened(path: str) -> SqliteStore:
    try:
        return SqliteStore(path)
    except OSError as fault:
        raise UnwritableDirectory(
            f"the controller's store {path} cannot be opened: {fault}",
            remedy="correct its owner and mode, make room on its disk, or replace the disk",
        ) from fault


def _server(settings: ControllerSettings, controller: Controller, token: Secret) -> uvicorn.Server:
    app = build(controller, token)
    kind, _, place = settings.listen.partition("://")
    quiet = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": 1}
    if kind == "unix":
        Path(place).unlink(missing_ok=True)
        config = uvicorn.Config(app, uds=place, **quiet)  # type: ignore[arg-type]
    else:
        host, _, port = place.partition(":")
        config = uvicorn.Config(app, host=host, port=int(port), **quiet)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    return server


def _wanted(parent: int) -> bool:
    return parent == 0 or os.path.exists(f"/proc/{parent}")


def main(argv: list[str]) -> int:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        serve(read_settings(argv[0]))
    except RhinoError as fault:
        log.error("refused problem=%s", codec.dumps(views.problem_of(fault)).decode())
        return int(fault.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
