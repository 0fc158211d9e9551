"""The network between hosts, measured: each sends to the next for a moment, all at once, as when
copies are made (`templates/network_rate.py`).

A port that is free has to be open for it; those who do not know the secret of a run are hung up on.
"""

import importlib.resources
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rhinoctl.errors import CommandFailed, RhinoError
from rhinoctl.remote.fleet import Fleet, H
from rhinoctl.remote.host import Command, Host, checked

SECONDS: Final = 0.5
"""Of sending: TCP has found its rate by then on any network of one site."""

LIMIT_S: Final = 8.0
"""A network that drops connections without a word is known by then."""

COMMAND_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A host of the round: its interpreter, how the others reach it, and the port to listen on."""

    name: str
    python: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """From a host to the next: bytes a second as they arrived there, or why none did."""

    sender: str
    receiver: str
    port: int
    bytes_s: float | None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a host tells: the rate of what came to it, why it could not send, or not listen."""

    bytes_s: float | None
    fault: str
    listening: str


def measure(fleet: Fleet[H], stops: Sequence[Stop]) -> tuple[Stretch, ...]:
    """The stretches from each stop to the next, and from the last to the first; none for fewer than
    two. Raises nothing: what went wrong with a host is the fault of its stretch."""
    if len(stops) < 2:
        return ()
    by_name = {stop.name: stop for stop in stops}
    following = dict(zip(by_name, [*stops[1:], stops[0]], strict=True))
    secret = secrets.token_hex(16)

    def ask(host: Host) -> _Said:
        return _ask(host, by_name[host.name], following[host.name], secret)

    answers = fleet.each(ask, by_name)
    return tuple(_stretch(name, following[name], answers) for name in by_name)


def _ask(host: Host, stop: Stop, to: Stop, secret: str) -> _Said:
    script = importlib.resources.files("rhinoctl_data.templates").joinpath("network_rate.py")
    asked = {
        "port": stop.port,
        "to": [to.address, to.port],
        "secret": secret,
        "seconds": SECONDS,
        "limit_s": LIMIT_S,
    }
    done = checked(
        host,
        Command(
            argv=(stop.python, "-I", "-c", script.read_text(encoding="utf-8")),
            what="measure the network",
            input=json.dumps(asked).encode(),
            timeout_s=COMMAND_S,
        ),
    )
    try:
        said = json.loads(done.stdout)
        return _Said(**{key: said[key] for key in ("bytes_s", "fault", "listening")})
    except (ValueError, KeyError, TypeError) as fault:
        raise CommandFailed(
            f"{host.name}: what it said of the network is not understood",
            remedy=f"run `{stop.python} -I -c 'print(1)'` there by hand",
        ) from fault


def _stretch(sender: str, to: Stop, answers: Mapping[str, _Said | RhinoError]) -> Stretch:
    there, here = answers[to.name], answers[sender]
    fault, rate = "", None
    if isinstance(there, RhinoError):
        fault = there.message
    elif there.listening:
        fault = f"{to.name} cannot listen on port {to.port}: {there.listening}"
    elif isinstance(here, RhinoError):
        fault = here.message
    elif there.bytes_s is None:
        fault = here.fault or "nothing came"
    else:
        rate = there.bytes_s
    return Stretch(sender=sender, receiver=to.name, port=to.port, bytes_s=rate, fault=fault)
