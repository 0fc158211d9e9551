"""The bounds of the transport, with their reasons (invariant 12)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBounds:
    """What a wire may use. One value for both sides of a connection."""

    connect_s: float = 1.0
    """A host that swallows packets is noticed so soon; gRPC's own deadline is 20 s."""

    keep_alive_s: float = 1.0
    """A connection is probed after this silence, and dropped if the probe is not answered as
    fast. Only twice in a silent call, since Flight's server allows no more: a peer that vanishes
    more than three seconds into a call is noticed by the call's timeout only."""

    lanes: int = 4
    """Calls under way to one peer: a slow one must not hold up the urgent one behind it."""

    lane_idle_s: float = 60.0
    """A lane that had nothing to do for so long gives its thread and connection back."""

    queued_max: int = 1024
    """Requests that wait for a lane of one peer."""

    queued_bytes_max: int = 512 << 20
    """Payload that waits for a lane of one peer; a larger single request waits alone."""

    inbox_max: int = 256
    """Requests that a loop was given and has not answered: each holds a thread of Flight."""

    inbox_bytes_max: int = 1 << 30
    """Payload of those; senders beyond it are held back by flow control. A larger single request
    is taken when there is no other."""

    answer_s: float = 600.0
    """No request waits longer for a loop, whatever its sender's patience."""

    cancel_check_s: float = 0.5
    """How soon a waiting handler notices that its caller has gone."""

    overdue_s: float = 0.5
    """How long after a request's timeout its loop goes without the transport's own news of it."""

    linger_s: float = 0.1
    """How long a closing server leaves its last answer to its reader."""

    close_s: float = 1.0
    """Closing takes no longer; what has not ended then is left to its own deadline."""


DEFAULT_BOUNDS = WireBounds()
