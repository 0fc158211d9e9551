"""What is asked of workers' disks, where another worker's have to do with it."""

from random import Random

import pytest

from rhinoctl.control.disks import DiskDesk
from rhinoctl.control.fleet import Fleet
from rhinoctl.errors import DiskRefused
from rhinoctl.ids import DiskId, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.disks import DiskAction, DiskReport, DiskRequest, DiskState
from rhinoctl.protocol.ports import Address
from tests.fakes.clock import FakeClock
from tests.fakes.wire import FakeNetwork

W1, W2 = WorkerId("w1"), WorkerId("w2")

LOCAL = ("grpc+unix:///run/w1.sock", "grpc+unix:///run/w2.sock")
ONE_HOST = ("grpc+tls://10.0.0.1:7301", "grpc+tls://10.0.0.1:7302")
TWO_HOSTS = ("grpc+tls://10.0.0.1:7301", "grpc+tls://10.0.0.2:7301")


def ask(addresses: tuple[str, str], path: str, state: DiskState = DiskState.IN_USE) -> None:
    """Have w2 add a directory, while w1 has /mnt/b/rhino for its second disk."""
    clock = FakeClock()
    wire = FakeNetwork(Random(0), clock).wire(Address("controller"))
    fleet = Fleet("c", dict(zip((W1, W2), addresses, strict=True)), wire, clock)
    for name, seen in fleet.workers.items():
        disks = (disk("d1", f"/data/{name}"),)
        more = (disk("d2", "/mnt/b/rhino", state),) if name == W1 else ()
        seen.at = clock.monotonic()
        seen.report = m.WorkerReport(
            header=m.Header(cluster="c"),
            worker=name,
            pid=1,
            wall=0.0,
            free_bytes=1 << 30,
            jobs={},
            disks=disks + more,
        )
    desk = DiskDesk(cluster="c", fleet=fleet, wire=wire, clock=clock)
    desk.ask(DiskRequest(action=DiskAction.ADD, worker=W2, path=path))


def disk(name: str, path: str, state: DiskState = DiskState.IN_USE) -> DiskReport:
    return DiskReport(
        disk=DiskId(name),
        path=path,
        state=state,
        free_bytes=1 << 30,
        vnodes=0,
        bytes=0,
        shares=DiskId(name),
    )


@pytest.mark.parametrize("addresses", [LOCAL, ONE_HOST])
@pytest.mark.parametrize(
    "path", ["/mnt/b/rhino", "/mnt/b/rhino/", "/mnt/b/rhino/new", "/mnt/b", "/data/w1/x"]
)
def test_what_has_to_do_with_another_workers_disk_on_the_host_is_refused(
    addresses: tuple[str, str], path: str
) -> None:
    with pytest.raises(DiskRefused, match="of worker w1 on the same host") as caught:
        ask(addresses, path)
    assert "`rhinoctl disk list`" in caught.value.remedy


def test_a_lost_disk_is_as_much_the_other_workers() -> None:
    with pytest.raises(DiskRefused):
        ask(LOCAL, "/mnt/b/rhino", DiskState.LOST)


@pytest.mark.parametrize("path", ["/mnt/b/rhino2", "/mnt/b/new", "/data/w2x"])
def test_a_directory_beside_it_is_left_to_the_agent(path: str) -> None:
    ask(LOCAL, path)


def test_a_directory_of_another_host_or_of_a_disk_that_was_retired_is_left_to_the_agent() -> None:
    ask(TWO_HOSTS, "/mnt/b/rhino")
    ask(ONE_HOST, "/mnt/b/rhino", DiskState.EMPTY)
