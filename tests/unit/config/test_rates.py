"""What was measured of networks, and what placement makes of it."""

from pathlib import Path

import pytest

from rhinoctl.config.clusters import NETWORK, ClusterHome
from rhinoctl.config.inventory import Inventory, parse_inventory
from rhinoctl.config.rates import Drift, Rate, Rates, bandwidths, drifts, whole
from rhinoctl.errors import ForeignManifest

TEXT = """\
cluster: clicks
controller: {host: c1}
workers:
  - {host: w1}
  - {host: w2}
  - {host: w3, address: 10.0.0.3}
"""
ADDRESSES = {"w1": "w1", "w2": "w2", "w3": "10.0.0.3"}


def read(text: str = TEXT) -> Inventory:
    inventory, mistakes = parse_inventory(text)
    assert inventory is not None, mistakes
    return inventory


def rates(days: float = 0.0, **bytes_s: float) -> Rates:
    return Rates(
        measured_at=days * 86_400,
        workers={
            name: Rate(address=ADDRESSES.get(name, name), bytes_s=rate)
            for name, rate in bytes_s.items()
        },
    )


def test_what_is_about_as_fast_as_the_fastest_is_as_fast() -> None:
    found = bandwidths(read(), rates(w1=1e9, w2=0.6e9, w3=0.1e9))
    assert found == {"w1": 1e9, "w2": 1e9, "w3": 0.1e9}


def test_what_is_not_known_is_left_out() -> None:
    assert bandwidths(read(), None) == {}
    assert bandwidths(read(), rates(w1=1e9, w9=1.0)) == {"w1": 1e9}
    elsewhere = read(TEXT.replace("10.0.0.3", "10.9.0.3"))
    assert bandwidths(elsewhere, rates(w3=1e9)) == {}


def test_the_inventory_comes_before_what_was_measured() -> None:
    said = read(TEXT.replace("{host: w1}", "{host: w1, bandwidth_mb_s: 10}"))
    found = bandwidths(said, rates(w1=1e9, w2=2e9, w3=2e9))
    assert found == {"w1": 10 << 20, "w2": 2e9, "w3": 2e9}
    assert drifts(said, rates(w1=1e9, w2=1e9, w3=1e9), rates(w1=1e6, w2=1e9, w3=1e9)) == ()
    assert whole(said, rates(w2=1e9, w3=1e9))


@pytest.mark.parametrize(
    "now",
    [
        {"w1": 1e9, "w2": 0.6e9, "w3": 0.15e9},
        {"w1": 0.2e9, "w2": 0.2e9, "w3": 0.02e9},
    ],
    ids=["noise", "jobs run"],
)
def test_the_same_network_is_no_drift(now: dict[str, float]) -> None:
    assert drifts(read(), rates(w1=1e9, w2=1e9, w3=0.1e9), rates(**now)) == ()


def test_another_network_is_a_drift_of_its_workers() -> None:
    kept, now = rates(w1=1e9, w2=1e9, w3=0.1e9), rates(12, w1=1e9, w2=0.1e9, w3=1e9)
    assert drifts(read(), kept, now) == (
        Drift(worker="w2", kept=1e9, days=12, now=0.1e9),
        Drift(worker="w3", kept=0.1e9, days=12, now=1e9),
    )
    assert drifts(read(), now, now) == ()


def test_what_nothing_was_known_of_counted_as_the_fastest() -> None:
    assert drifts(read(), None, rates(w1=1e9, w2=1e9, w3=0.9e9)) == ()
    (found,) = drifts(read(), None, rates(w1=1e9, w2=1e9, w3=0.1e9))
    assert (found.worker, found.kept) == ("w3", None)


def test_a_measurement_of_some_workers_is_not_whole() -> None:
    assert whole(read(), rates(w1=1.0, w2=1.0, w3=1.0))
    assert not whole(read(), rates(w1=1.0, w2=1.0))


def test_it_is_kept_beside_the_secrets(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "clicks", "clicks")
    assert home.rates() is None
    with home.claimed():
        home.keep_rates(rates(w1=1e9))
    assert home.rates() == rates(w1=1e9)
    (home.directory / NETWORK).write_text("{")
    with pytest.raises(ForeignManifest, match="cannot be used"):
        home.rates()
