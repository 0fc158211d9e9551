"""End-to-end latency of an open loop: from a record's creation to the delivery of its result.

Within a batch creation times are evenly spaced, so a batch is known by its youngest and its oldest
record; quantiles over batches are those of evenly spaced samples, weighted by records.
"""

import numpy as np

SAMPLES = 20
"""Evenly spaced points that stand for the records of a batch."""


class LatencyRecord:
    """Latencies in milliseconds, of all records of a run."""

    def __init__(self) -> None:
        self._points: list[np.ndarray] = []
        self._weights: list[float] = []
        self._max = 0.0

    def add(self, youngest_ms: float, oldest_ms: float, records: int) -> dict[str, float]:
        """Take a batch in; returns its own p50, p99 and maximum."""
        points = np.linspace(youngest_ms, oldest_ms, SAMPLES)
        self._points.append(points)
        self._weights.append(records / SAMPLES)
        self._max = max(self._max, oldest_ms)
        p50, p99 = np.quantile(points, [0.5, 0.99])
        return {
            "p50": round(float(p50), 1),
            "p99": round(float(p99), 1),
            "max": round(oldest_ms, 1),
        }

    def summary(self) -> dict[str, float]:
        """p50, p99 and maximum over all records; zeros if there were none."""
        if not self._points:
            return {"p50": 0.0, "p99": 0.0, "max": 0.0}
        points = np.concatenate(self._points)
        weights = np.repeat(self._weights, SAMPLES)
        order = np.argsort(points)
        share = np.cumsum(weights[order]) / weights.sum()
        p50, p99 = (float(points[order][np.searchsorted(share, q)]) for q in (0.5, 0.99))
        return {"p50": round(p50, 1), "p99": round(p99, 1), "max": round(self._max, 1)}
