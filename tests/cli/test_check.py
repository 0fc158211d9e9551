"""`check`: what a person reads, of hosts that nobody can reach and of those that were looked at."""

import json
import sys
from pathlib import Path
from typing import Any

from rhinoctl.errors import Exit
from rhinoctl.ops.check import CheckView, exit_of
from rhinoctl.ops.host_checks import HostFinding, Verdict
from rhinoctl.render.check import check_table
from rhinoctl.render.output import console_of


def test_hosts_that_cannot_be_reached(run: Any, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yml"
    hosts = "".join(f"  - host: w{n}.invalid\n" for n in (1, 2))
    ssh = f"ssh: {{user: spark, known_hosts: {tmp_path}/known, connect_s: 2}}\n"
    text = f"cluster: clicks\n{ssh}controller: {{host: c.invalid}}\nworkers:\n{hosts}"
    inventory.write_text(text)
    ended = run("check", "--inventory", str(inventory), "--json")
    assert ended.exit_code == Exit.PARTIAL
    view = json.loads(ended.stdout)
    assert (view["hosts"], view["looked_at"]) == (["controller", "w1.invalid", "w2.invalid"], [])
    assert [finding["check"] for finding in view["findings"]] == ["ssh"] * 3
    assert all("(host-unreachable)" in finding["seen"] for finding in view["findings"])


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
