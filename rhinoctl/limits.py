"""Every bound and deadline, with its reason (invariant 12)."""

# --- the batch protocol ---------------------------------------------------------------------------

FENCE_DEADLINE_S = 30.0
"""A worker that restarts needs seconds to come back; a query start may wait for it."""

OPEN_DEADLINE_S = 30.0
"""As for the fence: the query fails with the silent workers named rather than hang."""

STAGE_DEADLINE_S = 3600.0
"""A Spark job may be long; Spark itself supervises it. This only bounds a lost job."""

SEAL_DEADLINE_S = 30.0
"""Long enough for an agent's restart, after which it is known to lack the attempt."""

MARKER_DEADLINE_S = 3.0
"""A batch that carries a marker is not held up longer by a member that only just joined."""

APPLY_DEADLINE_S = 120.0
"""An instance that restarts replays its log before it can apply (`replay_target_s` and margin)."""

RETRY_DELAY_S = 0.1
"""Between two requests to a silent worker."""

MISSING_DELAY_S = 0.01
"""A slice is forwarded down the chain within milliseconds of its put."""

SEAL_MISSES_MAX = 100
"""After a second of missing slices the batch is staged anew rather than waited for."""

RESEND_EVERY = 20
"""Misses between two requests to the chain to forward an attempt again."""

ATTEMPTS_MAX = 5
"""Whole stagings of one batch before the query fails with the reasons."""
