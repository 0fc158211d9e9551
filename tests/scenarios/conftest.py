"""Scenarios run for some hundred batches, and count on rounds of checkpoints that are as short."""

import pytest

from rhinoctl import limits


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_ROUND_BATCHES", 32)
    monkeypatch.setattr(limits, "CHECKPOINT_HASTE", 8)
