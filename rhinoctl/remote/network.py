"""The network between hosts, measured: each sends to the next for a moment, all at once, as when
copies are made (`templates/network_rate.py`); in rounds, where not all can be reached at once.

A port that is free has to be open for it; those who do not know the secret of a run are hung up on.
"""

import importlib.resources
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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

ROUNDS_S: Final = 20.0
"""No round begins later: where nothing comes through, each takes `LIMIT_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A host of the round: its interpreter, how the others reach it, and the port to listen on."""

    name: str
    python: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """From a host to the next: bytes a second as they arrived there, or why none did; or why it was
    not measured."""

    sender: str
    receiver: str
    port: int
    bytes_s: float | None
    fault: str = ""
    unmeasured: str = ""


Pair = tuple[Stop, Stop]
"""Who sends, and who receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a host tells: the rate of what came to it, why it could not send, or not listen."""

    bytes_s: float | None
    fault: str
    listening: str


def measure(
    fleet: Fleet[H], stops: Sequence[Stop], now: Callable[[], float] = time.monotonic
) -> tuple[Stretch, ...]:
    """The stretches from each stop to the next, and from the last to the first; none for fewer than
    two. Raises nothing: what went wrong with a host is the fault of its stretch."""
    if len(stops) < 2:
        return ()
    pairs = list(zip(stops, [*stops[1:], stops[0]], strict=True))
    found: dict[Pair, Stretch] = {}
    end = now() + ROUNDS_S
    for pairs_of_round in rounds_of(pairs, fleet.at_once):
        if now() > end:
            break
        found |= _round(fleet, pairs_of_round)
    return tuple(found.get(pair) or _unmeasured(pair, fleet) for pair in pairs)


def rounds_of(
    pairs: Iterable[Pair], at_once: Callable[[Iterable[str]], bool]
) -> tuple[tuple[Pair, ...], ...]:
    """Pairs that are measured at the same time, in as few rounds as come about when each is put
    into the first that has room for it; without those whose two ends are never there at once."""
    rounds: list[list[Pair]] = []
    for pair in pairs:
        fitting = (each for each in rounds if at_once(_names([*each, pair])))
        room = next(fitting, None)
        if room is not None:
            room.append(pair)
        elif at_once(_names([pair])):
            rounds.append([pair])
    return tuple(map(tuple, rounds))


def _names(pairs: Iterable[Pair]) -> set[str]:
    return {stop.name for pair in pairs for stop in pair}


def _round(fleet: Fleet[H], pairs: Sequence[Pair]) -> dict[Pair, Stretch]:
    following = {sender.name: receiver for sender, receiver in pairs}
    expecting = {receiver.name for _, receiver in pairs}
    stops = {stop.name: stop for pair in pairs for stop in pair}
    secret = secrets.token_hex(16)

    def ask(host: Host) -> _Said:
        to, expects = following.get(host.name), host.name in expecting
        return _ask(host, stops[host.name], to, secret, expects=expects)

    answers = fleet.each(ask, stops)
    return {pair: _stretch(pair, answers) for pair in pairs}


def _ask(host: Host, stop: Stop, to: Stop | None, secret: str, *, expects: bool) -> _Said:
    script = importlib.resources.files("rhinoctl_data.templates").joinpath("network_rate.py")
    asked = {
        "port": stop.port if expects else None,
        "to": None if to is None else [to.address, to.port],
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


def _stretch(pair: Pair, answers: Mapping[str, _Said | RhinoError]) -> Stretch:
    sender, to = pair
    there, here = answers[to.name], answers[sender.name]
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
    return Stretch(sender=sender.name, receiver=to.name, port=to.port, bytes_s=rate, fault=fault)


def _unmeasured(pair: Pair, fleet: Fleet[H]) -> Stretch:
    sender, to = pair
    why = (
        f"those before it took more than {ROUNDS_S:g} s"
        if fleet.at_once(_names([pair]))
        else "their jump host lets us reach one of the two at a time"
    )
    return Stretch(sender=sender.name, receiver=to.name, port=to.port, bytes_s=None, unmeasured=why)
