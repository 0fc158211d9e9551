"""The controller as a process: `python -m rhinoctl.control SETTINGS`."""

import logging
import os
import signal
import ssl
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from rhinoctl import limits
from rhinoctl.control.api import build
from rhinoctl.control.client import LOOPBACK
from rhinoctl.control.controller import Controller
from rhinoctl.control.roles import Role, read_tokens
from rhinoctl.control.settings import ControllerSettings, read_settings
from rhinoctl.errors import RhinoError, UnwritableDirectory, UsageError
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.starting import CONTROLLER
from rhinoctl.state.disk import check_mounted
from rhinoctl.state.locks import ControllerLock
from rhinoctl.state.sqlite import SqliteStore
from rhinoctl.wire.certificates import read_credentials
from rhinoctl.wire.clock import SystemClock
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.points import STORE_POINTS, WIRE_POINTS, with_points

log = logging.getLogger("rhino.controller")


def serve(settings: ControllerSettings) -> None:
    """Run until SIGTERM, or until the parent is gone. Raises DiskNotMounted where the directory is
    missing that it does not make, and StoreGone once the store is not at its path any more."""
    if not settings.makes_directories:
        check_mounted(os.path.dirname(settings.store), CONTROLLER)
    credentials = read_credentials(settings.token_file, settings.tls)
    tokens = read_tokens(settings.tokens) or {Role.OPERATOR: credentials.token}
    lock = ControllerLock(f"{settings.store}.controller")
    lock.acquire()
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    store = with_points(_opened(settings.store), "controller", STORE_POINTS)
    wire = with_points(FlightWire(None, credentials), "controller", WIRE_POINTS)
    controller = Controller(settings, clock=SystemClock(), wire=wire, store=store)
    server = _server(settings, build(controller, tokens))
    threading.Thread(target=server.run, name="api", daemon=True).start()
    log.info("controller-started pid=%d listen=%s", os.getpid(), settings.listen)
    try:
        while not stopping.is_set() and _wanted(settings.parent):
            store.check_there()
            _turn(controller)
    finally:
        server.should_exit = True
        wire.close()
        store.close()
        lock.release()


def _turn(controller: Controller) -> None:
    """One turn of the loop. A fault of ours in it is told, and the loop goes on: one job's trouble
    is not to take status and help away from all."""
    try:
        controller.step(limits.CONTROLLER_WAIT_S)
    except RhinoError:
        raise
    except Exception:
        log.exception("controller-turn-failed")
        time.sleep(limits.CONTROLLER_WAIT_S)


def _opened(path: str) -> SqliteStore:
    try:
        return SqliteStore(path)
    except OSError as fault:
        raise UnwritableDirectory(
            f"the controller's store {path} cannot be opened: {fault}",
            remedy="correct its owner and mode, make room on its disk, or replace the disk",
        ) from fault


def _server(settings: ControllerSettings, app: FastAPI) -> uvicorn.Server:
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, **_place(settings)
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    return server


def _place(settings: ControllerSettings) -> dict[str, Any]:
    """Where uvicorn listens. Without TLS, nobody from another host is answered."""
    parts, tls = urlsplit(settings.listen), settings.tls
    if parts.scheme == "unix":
        Path(parts.path).unlink(missing_ok=True)
        return {"uds": parts.path}
    place = {"host": parts.hostname, "port": parts.port}
    if parts.scheme == "https" and tls is not None:
        return place | {
            "ssl_certfile": tls.certificate,
            "ssl_keyfile": tls.key,
            "ssl_ca_certs": tls.ca,
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }
    if parts.scheme == "http" and parts.hostname in LOOPBACK:
        return place
    raise UsageError(
        f"the controller cannot listen at {settings.listen}",
        remedy="use unix:///path, http://127.0.0.1:PORT or, with `tls`, https://HOST:PORT",
    )


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
