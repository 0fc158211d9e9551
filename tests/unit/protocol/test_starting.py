"""What is advised to have a process back is what its kind of cluster has."""

import pytest

from rhinoctl.protocol.starting import start_again, start_silent


@pytest.mark.parametrize("address", ["https://c1:7470", "grpc+tls://w3:7471"])
def test_what_was_deployed_is_started_on_its_host(address: str) -> None:
    assert start_again(["w3"], address) == "`rhinoctl start w3`"


@pytest.mark.parametrize(
    "address", ["unix:///tmp/c.sock", "http://127.0.0.1:1", "grpc+unix:///w.sock", "grpc+tcp://h:1"]
)
def test_a_local_cluster_is_brought_up(address: str) -> None:
    assert start_again(["w3"], address) == "`rhinoctl local up`"


def test_both_are_named_where_nobody_knows() -> None:
    both = start_again(["w1", "w2"])
    assert "`rhinoctl start w1 w2`" in both
    assert "`rhinoctl local up`" in both


def test_one_that_may_hang_is_restarted_for_a_start_leaves_what_runs() -> None:
    deployed = start_silent("w3", "grpc+tls://w3:7471")
    assert deployed == "`rhinoctl start w3`; one that runs and hangs: `rhinoctl restart w3`"
    local = start_silent("w3", "grpc+unix:///w.sock")
    assert local == "`rhinoctl local up`; one that runs and hangs: `rhinoctl local down` before it"
    both = start_silent("w3")
    assert "`rhinoctl restart w3` (local cluster: `rhinoctl local down`, then `local up`)" in both
