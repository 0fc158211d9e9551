"""What a host is to have, and the steps that are missing: each difference has its step, and only
that one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rhino_agent.settings import AgentSettings
from rhinoctl.config.deployment import (
    DirectoryFound,
    FileFound,
    Found,
    HostTarget,
    InstallEnvironment,
    MakeDirectories,
    Papers,
    Role,
    ServiceFound,
    StartService,
    Step,
    SwitchEnvironment,
    WriteFiles,
    controller_url,
    names_of,
    places,
    plan_host,
    target_of,
    words,
)
from rhinoctl.config.inventory import Inventory, parse_inventory
from rhinoctl.control.settings import ControllerSettings
from rhinoctl.errors import DiskNotMounted, ForeignManifest
from rhinoctl.protocol import codec
from rhinoctl.protocol.placement import Capacity

TEXT = """\
cluster: clicks
ssh: {user: spark}
controller: {host: c1, address: fd00::1, lease_s: 7}
limits: {memory_mb: 2000}
agent: {cache_mb: 32}
workers:
  - {host: w1, rack: r1, slots: 3, disks: [/d1, /d2], limits: {cpus: 2}}
  - {host: w2, address: 10.0.0.2, port: 7500}
"""
SECRETS = ("the-key", "token-of-the-wire", "token-of-an-operator")


def read(text: str) -> Inventory:
    inventory, mistakes = parse_inventory(text)
    assert inventory is not None, mistakes
    return inventory


def target(
    inventory: Inventory,
    host: str,
    environment: str = "1-a",
    bandwidths: Mapping[str, float] | None = None,
    **tokens: str,
) -> HostTarget:
    papers = Papers(
        ca=b"ca",
        certificate=b"certificate",
        key=b"the-key",
        tokens={"wire": b"token-of-the-wire", **{k: v.encode() for k, v in tokens.items()}},
    )
    return target_of(
        inventory,
        places(inventory)[host],
        identity="clicks-1",
        environment=environment,
        papers={Role.CONTROLLER: papers, Role.AGENT: papers},
        bandwidths=bandwidths,
    )


def converged(wanted: HostTarget) -> Found:
    """What a host has that is as it is to be."""
    return Found(
        user="spark",
        identity=wanted.identity,
        current=wanted.environment,
        environments=frozenset({wanted.environment}),
        known=frozenset(each.path for each in wanted.directories),
        state=frozenset(each.path for each in wanted.directories if each.state),
        directories={
            d.path: DirectoryFound(owner="spark", mode=d.mode) for d in wanted.directories
        },
        files={f.path: FileFound(digest=f.digest, mode=f.mode) for f in wanted.files()},
        services={
            s.role: ServiceFound(running=True, started_with=s.started_with(wanted.environment))
            for s in wanted.services
        },
    )


W1 = target(read(TEXT), "w1")
C1 = target(read(TEXT), "controller", operator="token-of-an-operator")


@pytest.mark.parametrize("wanted", [W1, C1], ids=["agent", "controller"])
def test_an_empty_host_gets_everything_and_a_finished_one_nothing(wanted: HostTarget) -> None:
    plan = plan_host(wanted, Found(user="spark"))
    assert [type(step) for step in plan.steps] == [
        MakeDirectories,
        InstallEnvironment,
        WriteFiles,
        SwitchEnvironment,
        StartService,
    ]
    assert not plan.restarts
    assert plan_host(wanted, converged(wanted)).steps == ()


def other(found: Found, path: str, **change: Any) -> Found:
    return replace(found, files={**found.files, path: replace(found.files[path], **change)})


def without(found: Found, path: str) -> Found:
    return replace(found, directories={p: d for p, d in found.directories.items() if p != path})


def owned(found: Found, path: str, **change: Any) -> Found:
    changed = {path: replace(found.directories[path], **change)}
    return replace(found, directories={**found.directories, **changed})


def serving(found: Found, **change: Any) -> Found:
    return replace(found, services={Role.AGENT: replace(found.services[Role.AGENT], **change)})


DIFFERENCES: dict[str, tuple[Callable[[Found], Found], list[type[Step]], bool]] = {
    "a file's content": (
        lambda f: other(f, "/opt/rhinoctl/agent/settings.json", digest="0"),
        [WriteFiles],
        False,
    ),
    "a file's mode": (
        lambda f: other(f, "/opt/rhinoctl/agent/tls.key", mode=0o644),
        [WriteFiles],
        False,
    ),
    "a directory": (lambda f: without(f, "/opt/rhinoctl/run"), [MakeDirectories], False),
    "a directory's owner": (lambda f: owned(f, "/d1", owner="root"), [MakeDirectories], False),
    "a directory's mode": (
        lambda f: owned(f, "/opt/rhinoctl/run", mode=0o755),
        [MakeDirectories],
        False,
    ),
    "the mode of a disk's directory, which is its maker's affair": (
        lambda f: owned(f, "/d1", mode=0o755),
        [],
        False,
    ),
    "a disk that was not known": (
        lambda f: replace(f, state=f.state - {"/d2"}),
        [MakeDirectories],
        False,
    ),
    "the release": (
        lambda f: replace(f, environments=frozenset({"1-b"}), current="1-b"),
        [InstallEnvironment, SwitchEnvironment],
        False,
    ),
    "the link, as after a deployment that broke off": (
        lambda f: replace(f, current=""),
        [SwitchEnvironment],
        False,
    ),
    "a process that does not run": (lambda f: serving(f, running=False), [StartService], False),
    "a process that nobody would start again": (
        lambda f: serving(f, kept=False),
        [StartService],
        False,
    ),
    "what it was started with": (lambda f: serving(f, started_with="x"), [StartService], True),
    "a process of which that is not known": (
        lambda f: serving(f, started_with=""),
        [StartService],
        True,
    ),
}


@pytest.mark.parametrize(
    ("change", "steps", "restarts"), DIFFERENCES.values(), ids=list(DIFFERENCES)
)
def test_each_difference_has_its_steps(
    change: Callable[[Found], Found], steps: list[type[Step]], restarts: bool
) -> None:
    plan = plan_host(W1, change(converged(W1)))
    assert [type(step) for step in plan.steps] == steps
    assert plan.restarts is restarts
    assert all(words(step) for step in plan.steps)


def test_what_a_process_was_started_with_is_all_that_it_depends_on() -> None:
    (before,) = W1.services
    others = [target(read(TEXT), "w1", environment="1-b")]
    others += [
        target(read(TEXT.replace(old, new)), "w1")
        for old, new in (("cpus: 2", "cpus: 3"), ("cache_mb: 32", "cache_mb: 33"))
    ]
    for changed in others:
        (service,) = changed.services
        assert service.started_with(changed.environment) != before.started_with("1-a")
    (same,) = target(read(TEXT.replace("lease_s: 7", "lease_s: 8")), "w1").services
    assert same.started_with("1-a") == before.started_with("1-a")


def test_a_disk_that_is_gone_is_not_made_anew() -> None:
    with pytest.raises(DiskNotMounted, match=r"w1: /d2 was there and is gone"):
        plan_host(W1, without(converged(W1), "/d2"))
    fresh = replace(without(converged(W1), "/d2"), known=frozenset())
    assert isinstance(plan_host(W1, fresh).steps[0], MakeDirectories)


def test_a_host_of_another_cluster_is_refused_by_that_cluster_s_name() -> None:
    with pytest.raises(ForeignManifest, match=r"w1: /opt/rhinoctl is of cluster clicks-2"):
        plan_host(W1, replace(converged(W1), identity="clicks-2"))


def test_a_controller_on_a_worker_s_host_is_a_part_of_that_host() -> None:
    apart = places(read(TEXT))
    assert [(name, place.roles) for name, place in apart.items()] == [
        ("controller", (Role.CONTROLLER,)),
        ("w1", (Role.AGENT,)),
        ("w2", (Role.AGENT,)),
    ]
    shared = places(read(TEXT.replace("host: c1", "host: w2")))
    assert [(name, place.roles) for name, place in shared.items()] == [
        ("w2", (Role.CONTROLLER, Role.AGENT)),
        ("w1", (Role.AGENT,)),
    ]
    both = target(read(TEXT.replace("host: c1", "host: w2")), "w2")
    assert [service.role for service in both.services] == [Role.CONTROLLER, Role.AGENT]
    names = [service.name for service in both.services]
    assert names == ["rhinoctl-clicks-controller", "rhinoctl-clicks-agent"]


def settings(wanted: HostTarget, kind: type) -> Any:
    (service,) = wanted.services
    (file,) = [each for each in service.files if each.path == service.settings]
    return codec.loads(kind, file.content)


def test_an_agent_s_settings_are_what_the_agent_reads() -> None:
    read_back = settings(W1, AgentSettings)
    assert (read_back.cluster, read_back.worker) == ("clicks-1", "w1")
    assert (read_back.disk, read_back.disks) == ("/d1", ("/d2",))
    assert read_back.listen == "grpc+tls://0.0.0.0:7471"
    assert read_back.tls.key == "/opt/rhinoctl/agent/tls.key"
    assert read_back.token_file == "/opt/rhinoctl/agent/wire.token"
    assert read_back.cache_bytes == 32 << 20
    (service,) = W1.services
    assert (service.memory_mb, service.cpus) == (2000, 2)


def test_the_controller_s_settings_are_what_the_controller_reads() -> None:
    read_back = settings(C1, ControllerSettings)
    assert read_back.workers == {"w1": "grpc+tls://w1:7471", "w2": "grpc+tls://10.0.0.2:7500"}
    assert read_back.listen == "https://[::]:7470"
    assert read_back.store == "/var/lib/rhinoctl/controller/controller.db"
    assert read_back.lease_s == 7
    assert read_back.capacities == {
        "w1": Capacity(instances=3, rack="r1"),
        "w2": Capacity(),
    }
    assert read_back.tokens == {"operator": "/opt/rhinoctl/controller/operator.token"}
    assert controller_url(read(TEXT)) == "https://[fd00::1]:7470"
    assert names_of(places(read(TEXT))["controller"], Role.CONTROLLER) == ("fd00::1", "c1")


def test_deployed_processes_make_no_directories_for_state() -> None:
    """A deployment has made them: one that is missing later is not mounted."""
    assert not settings(W1, AgentSettings).makes_directories
    assert not settings(C1, ControllerSettings).makes_directories


def test_the_controller_s_settings_have_what_is_known_of_networks() -> None:
    known = target(read(TEXT), "controller", bandwidths={"w2": 1e9})
    read_back = settings(known, ControllerSettings)
    assert [c.bandwidth for c in read_back.capacities.values()] == [None, 1e9]
    assert target(read(TEXT), "w1", bandwidths={"w2": 1e9}) == W1


def test_secrets_are_not_shown() -> None:
    plan = plan_host(C1, Found(user="spark"))
    shown = repr(plan) + "".join(map(words, plan.steps))
    assert not any(secret in shown for secret in SECRETS)
    assert {each.mode for each in C1.files()} == {0o600}
