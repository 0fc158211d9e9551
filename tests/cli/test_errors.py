"""Bad input: a message with a remedy, the documented exit code, and nothing changed."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.config import cluster as config
from rhinoctl.errors import Exit
from rhinoctl.remote.proc import born
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

HANDOVER = ("handover", "clicks", "--vnodes", "3", "--to", "i1")
RESCALE = ("rescale", "clicks", "--instances")
JOB = "/v1/jobs/clicks"

REFUSED_HERE: list[tuple[str, tuple[str, ...], Exit]] = [
    ("no-such-verb", ("nonsense",), Exit.USAGE),
    ("no-such-option", ("status", "--colour"), Exit.USAGE),
    ("option-of-a-command", ("hosts", "exec", "df", "-h", "/"), Exit.USAGE),
    ("missing-argument", ("handover",), Exit.USAGE),
    ("not-a-number", (*RESCALE, "four"), Exit.USAGE),
    ("instances-0", (*RESCALE, "0"), Exit.USAGE),
    ("instances-negative", (*RESCALE, "-3"), Exit.USAGE),
    ("vnodes-nonsense", ("handover", "clicks", "--vnodes", "3;4", "--to", "i1"), Exit.USAGE),
    ("vnodes-backwards", ("handover", "clicks", "--vnodes", "9-7", "--to", "i1"), Exit.USAGE),
    ("vnodes-twice", ("handover", "clicks", "--vnodes", "3,1-4", "--to", "i1"), Exit.USAGE),
    ("bind-what", ("job", "bind", "clicks"), Exit.USAGE),
    ("address", ("status", "--cluster", "ftp://nowhere"), Exit.USAGE),
    ("far-address", ("status", "--cluster", "http://192.0.2.1:80"), Exit.USAGE),
    ("no-cluster", ("status",), Exit.REFUSED),
    ("no-cluster-there", ("local", "status", "--cluster", "/nonexistent"), Exit.REFUSED),
    ("nothing-to-end", ("local", "down"), Exit.REFUSED),
    ("local-address", ("local", "up", "--cluster", "unix:///tmp/c.sock"), Exit.USAGE),
    ("workers-0", ("local", "up", "--workers", "0"), Exit.USAGE),
    ("demo-query", ("demo", "--query", "joins"), Exit.USAGE),
    ("bench-query", ("bench", "steady", "--query", "q6"), Exit.USAGE),
    ("bench-sink", ("bench", "steady", "--sink", "kafka"), Exit.USAGE),
    ("demo-seconds", ("demo", "--seconds", "1"), Exit.USAGE),
    ("set-other", ("job", "set", "clicks", "instances=4"), Exit.USAGE),
    ("set-no-value", ("job", "set", "clicks", "replication"), Exit.USAGE),
    ("set-no-number", ("job", "set", "clicks", "replication=two"), Exit.USAGE),
    ("set-negative", ("job", "set", "clicks", "replication=-1"), Exit.USAGE),
    ("plan-negative", ("groups", "plan", "clicks", "--replication", "-1"), Exit.USAGE),
    ("failover-to", ("failover", "w1", "--to", "w2,,w3"), Exit.USAGE),
    ("failover-parallel", ("failover", "w1", "--parallel", "0"), Exit.USAGE),
]


@pytest.mark.parametrize(("name", "argv", "exit_code"), REFUSED_HERE)
def test_refused_here(
    run: Any, golden: Any, tmp_path: Path, name: str, argv: tuple[str, ...], exit_code: Exit
) -> None:
    ended = run(*argv)
    assert ended.exit_code == exit_code
    assert ended.stdout == ""
    golden(f"error-{name}", ended)
    assert not (tmp_path / "state").exists()


REFUSED_THERE: list[tuple[tuple[str, ...], str, str, str, Exit]] = [
    (("job", "show", "nope"), "GET", "/v1/jobs/nope", "unknown-job", Exit.REFUSED),
    (("job", "delete", "nope", "--yes"), "GET", "/v1/jobs/nope", "unknown-job", Exit.REFUSED),
    (("job", "bind", "clicks", "--new-stream"), "POST", f"{JOB}/bind", "busy", Exit.BUSY),
    (HANDOVER, "POST", f"{JOB}/handover", "unknown-job", Exit.REFUSED),
    (HANDOVER, "POST", f"{JOB}/handover", "unknown-instance", Exit.REFUSED),
    (HANDOVER, "POST", f"{JOB}/handover", "unknown-vnode", Exit.REFUSED),
    (HANDOVER, "POST", f"{JOB}/handover", "busy", Exit.BUSY),
    (HANDOVER, "POST", f"{JOB}/handover", "refused", Exit.REFUSED),
    ((*RESCALE, "99"), "POST", f"{JOB}/rescale", "parallelism-out-of-range", Exit.USAGE),
    ((*RESCALE, "4"), "POST", f"{JOB}/rescale", "not-enough-workers", Exit.REFUSED),
    (("op", "show", "op-99"), "GET", "/v1/ops/op-99", "unknown-operation", Exit.REFUSED),
    (("op", "abort", "op-99"), "POST", "/v1/ops/op-99/abort", "unknown-operation", Exit.REFUSED),
    (("failover", "w9"), "POST", "/v1/failover", "unknown-worker", Exit.REFUSED),
    (("failover", "w1"), "POST", "/v1/failover", "no-copy", Exit.REFUSED),
    (("failover", "w1"), "POST", "/v1/failover", "healthy-target", Exit.REFUSED),
    (("switchover", "w9"), "POST", "/v1/switchover", "unknown-worker", Exit.REFUSED),
    (("switchover", "w1"), "POST", "/v1/switchover", "busy", Exit.BUSY),
    (("drain", "w9"), "POST", "/v1/drain", "unknown-worker", Exit.REFUSED),
    (("drain", "w1"), "POST", "/v1/drain", "refused", Exit.REFUSED),
    (("groups", "show", "nope"), "POST", "/v1/jobs/nope/groups", "unknown-job", Exit.REFUSED),
    (("groups", "plan", "nope"), "POST", "/v1/jobs/nope/groups", "unknown-job", Exit.REFUSED),
    (("groups", "apply", "nope"), "POST", "/v1/jobs/nope/groups", "unknown-job", Exit.REFUSED),
    (("checkpoint", "nope"), "POST", "/v1/jobs/nope/checkpoint", "unknown-job", Exit.REFUSED),
    (
        ("job", "set", "nope", "replication=1"),
        "POST",
        "/v1/jobs/nope/set",
        "unknown-job",
        Exit.REFUSED,
    ),
    (("status",), "GET", "/v1/status", "unauthenticated", Exit.REFUSED),
    (("status",), "GET", "/v1/status", "needs-repair", Exit.NEEDS_REPAIR),
    (("status",), "GET", "/v1/status", "unexpected", Exit.UNEXPECTED),
]


@pytest.mark.parametrize(("argv", "verb", "path", "code", "exit_code"), REFUSED_THERE)
def test_refused_by_the_controller(
    controller: FakeController,
    run: Any,
    argv: tuple[str, ...],
    verb: str,
    path: str,
    code: str,
    exit_code: Exit,
) -> None:
    controller.answers[verb, path] = fake.problem(code, f"what is wrong: {code}")
    ended = run(*argv)
    assert (ended.exit_code, ended.stdout) == (exit_code, "")
    assert ended.stderr.count("\n") == 2
    assert len(controller.asked) == 1
    as_json = run(*argv, "--json")
    assert as_json.exit_code == exit_code
    assert json.loads(as_json.stdout) == {
        "error": {
            "code": code,
            "message": f"what is wrong: {code}",
            "remedy": "do as the remedy says",
            "exit_code": int(exit_code),
        }
    }
    assert as_json.stderr == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_as_text_and_as_json(
    controller: FakeController, run: Any, golden: Any, as_json: bool
) -> None:
    busy = fake.problem("busy", "rescale op-7 of job clicks is warming", "wait, or end it")
    controller.answers["POST", f"{JOB}/handover"] = busy
    name = "error-json" if as_json else "error-text"
    golden(name, run(*HANDOVER, *(["--json"] if as_json else [])))


def test_deleting_asks_first(controller: FakeController, run: Any, golden: Any) -> None:
    """There is no terminal to ask on, and nobody has said yes."""
    controller.answers["GET", JOB] = fake.job(live=False)
    ended = run("job", "delete", "clicks")
    assert ended.exit_code == Exit.USAGE
    golden("error-delete-unasked", ended)
    assert [verb for verb, _, _ in controller.asked] == ["GET"]


# --- local clusters ------------------------------------------------------------------------------


def up_already(directory: Path) -> config.ClusterFile:
    """A cluster whose every process is this one."""
    cluster = config.with_workers(
        config.new_cluster(directory, cache_mb=1, buffer_mb=1), directory, 2
    )
    me = (os.getpid(), born(os.getpid()) or 0)
    cluster = replace(
        cluster, cluster="0f3a9c51d2b4e688", processes=dict.fromkeys(cluster.names(), me)
    )
    directory.mkdir(parents=True)
    config.write_cluster(directory, cluster)
    return cluster


def test_a_second_up(run: Any, golden: Any, tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    before = up_already(directory)
    ended = run("local", "up", "--cluster", str(directory))
    assert ended.exit_code == Exit.REFUSED
    golden("error-second-up", ended)
    assert config.read_cluster(directory) == before


def test_fewer_workers_than_there_are(run: Any, golden: Any, tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    cluster = replace(up_already(directory), processes={})
    config.write_cluster(directory, cluster)
    ended = run("local", "up", "--workers", "1", "--cluster", str(directory))
    assert ended.exit_code == Exit.REFUSED
    golden("error-fewer-workers", ended)


@pytest.mark.parametrize("verb", ["up", "down", "status"])
def test_a_foreign_file(run: Any, golden: Any, tmp_path: Path, verb: str) -> None:
    (tmp_path / "cluster.json").write_text('{"format": 9, "version": "7.1"}')
    ended = run("local", verb, "--cluster", str(tmp_path))
    assert ended.exit_code == Exit.REFUSED
    golden("error-foreign-file", replace(ended, argv=("local", "VERB", "--cluster", "TMP")))


def test_a_directory_that_cannot_be_written(run: Any, golden: Any, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    ended = run("local", "up", "--cluster", str(tmp_path / "a-file" / "cluster"))
    assert ended.exit_code == Exit.REFUSED
    golden("error-unwritable", ended)


def test_a_port_in_use(run: Any, tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        port = str(bound.getsockname()[1])
        ended = run("local", "up", "--port", port, "--cluster", str(tmp_path / "c"), "--json")
    assert ended.exit_code == Exit.REFUSED
    assert json.loads(ended.stdout)["error"]["code"] == "port-in-use"
    assert not (tmp_path / "c").exists()


def test_no_java(run: Any, golden: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = run("demo")
    assert ended.exit_code == Exit.REFUSED
    golden("error-no-java", ended)


# --- the root ------------------------------------------------------------------------------------


def test_an_unexpected_error_is_short_and_its_traceback_is_kept(
    run: Any, golden: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("status", "--cluster", "no name has a zero byte: \0")
    ended = run(*argv)
    assert ended.exit_code == Exit.UNEXPECTED
    golden("error-unexpected", replace(ended, argv=("status", "--cluster", "\\0")))
    log = tmp_path / "state" / "rhinoctl" / "errors.log"
    assert "Traceback" in log.read_text()
    monkeypatch.setenv("RHINO_DEBUG", "1")
    assert "Traceback" in run(*argv).stderr


def test_output_that_nobody_reads() -> None:
    """As in ``rhinoctl … | head``: no complaint."""
    script = f"{sys.executable} -m rhinoctl.cli --help"
    piped = subprocess.run(
        ["/bin/sh", "-c", f"{script} | true"], capture_output=True, text=True, timeout=60
    )
    assert piped.stderr == ""


def test_no_command_at_all(run: Any) -> None:
    assert run().exit_code == Exit.USAGE
    assert run("local").exit_code == Exit.USAGE
