"""`check`: what a person reads, of hosts that nobody can reach and of those that were looked at."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ops.check import CheckView, HostState, exit_of
from rhinoctl.ops.host_checks import HostFinding, Verdict
from rhinoctl.ops.mending import HostMend
from rhinoctl.render.check import check_table
from rhinoctl.render.output import console_of


@pytest.mark.parametrize("more", [(), ("--apply",), ("--apply", "--dry-run")], ids=" ".join)
def test_hosts_that_cannot_be_reached(run: Any, tmp_path: Path, more: tuple[str, ...]) -> None:
    inventory = tmp_path / "inventory.yml"
    hosts = "".join(f"  - host: w{n}.invalid\n" for n in (1, 2))
    ssh = f"ssh: {{user: spark, known_hosts: {tmp_path}/known, connect_s: 2}}\n"
    text = f"cluster: clicks\n{ssh}controller: {{host: c.invalid}}\nworkers:\n{hosts}"
    inventory.write_text(text)
    ended = run("check", "--inventory", str(inventory), "--json", *more)
    assert ended.exit_code == Exit.PARTIAL
    view = json.loads(ended.stdout)
    assert (view["hosts"], view["looked_at"]) == (["controller", "w1.invalid", "w2.invalid"], [])
    assert [finding["check"] for finding in view["findings"]] == ["ssh"] * 3
    assert all("(host-unreachable)" in finding["seen"] for finding in view["findings"])
    assert (view["mends"], view["run"]) == ([], "")


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_options_of_apply_without_it_are_a_mistake(run: Any, option: str) -> None:
    ended = run("check", option)
    assert ended.exit_code == Exit.USAGE
    assert "add --apply" in ended.stderr


def finding(check: str, verdict: Verdict, seen: str, remedy: str = "") -> HostFinding:
    return HostFinding(host="w1", check=check, verdict=verdict, seen=seen, remedy=remedy)


def test_the_worst_comes_where_the_eye_is_and_the_counts_are_right(capsys: Any) -> None:
    view = CheckView(
        file="inventory.yml",
        cluster="clicks",
        hosts=("w1",),
        looked_at=("w1",),
        findings=(
            finding("python", Verdict.PASS, "3.12 at /usr/bin/python3"),
            finding("port 7471", Verdict.FAIL, "somebody listens there", "see who it is"),
            finding("clock", Verdict.WARN, "3.0 s ahead of ours", "set it"),
        ),
    )
    assert exit_of(view) is Exit.DEGRADED
    console_of(sys.stdout).print(check_table(view))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "inventory.yml: cluster clicks, 1 of 1 host looked at"
    order = [line.split()[1] for line in lines if line.startswith("w1")]
    assert order == ["pass", "fail", "warn"]
    assert lines[-1] == "1 failed, 1 warned, 1 passed"


MENDED = (
    HostMend(host="w1", what="make /opt/rhinoctl (in /)", state=HostState.DONE),
    HostMend(
        host="w1",
        what="let services of spark go on while nobody is logged in",
        state=HostState.FAILED,
        code="command-failed",
        reason="spark may not linger by its own wish: Access denied",
        remedy="by a person with root, once: `sudo loginctl enable-linger spark` there",
    ),
)


def mends_of(view: CheckView, capsys: Any) -> str:
    console_of(sys.stdout).print(check_table(view))
    out = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    return out.partition("1 passed\n\n")[2]


def test_what_is_mended_comes_last_with_why_not_and_what_to_do(capsys: Any) -> None:
    view = CheckView(
        file="inventory.yml",
        cluster="clicks",
        hosts=("w1",),
        looked_at=("w1",),
        findings=(finding("python", Verdict.PASS, "3.12 at /usr/bin/python3"),),
        mends=MENDED,
        run="20260314-150926-5f3a",
    )
    assert exit_of(view) is Exit.PARTIAL
    shown = mends_of(view, capsys)
    assert shown.splitlines()[0].split() == [
        *("HOST", "STATE", "`rhinoctl", "check", "--apply`", "WHY", "NOT", "WHAT", "TO", "DO")
    ]
    assert "(command-failed)" in shown
    assert "run 20260314-150926-5f3a" in shown
    could = replace(view, mends=(replace(MENDED[0], state=HostState.PLANNED),), run="")
    assert exit_of(could) is Exit.DONE
    assert exit_of(replace(could, dry_run=True)) is Exit.HAS_CHANGES
    assert (
        mends_of(could, capsys)
        == """\
HOST  STATE  `rhinoctl check --apply`
w1    could  make /opt/rhinoctl (in /)"""
    )
