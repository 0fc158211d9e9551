"""`deploy`, its relatives and the verbs on hosts: what a person reads, and how they end where
nobody can be reached or asked."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType

from rhinoctl.errors import Exit
from rhinoctl.ops import running
from rhinoctl.ops.deploy import DeployView, HostState, HostView
from rhinoctl.ops.members import AddView, RemovePlan, RemoveView
from rhinoctl.ops.running import Executed, ExecView, HostFault, HostsView, LogView, ProcessView
from rhinoctl.ops.undeploy import UndeployedHost, UndeployView
from rhinoctl.ops.upgrade import By, ReleaseView, UpgradeHost, UpgradeView, Verdict
from rhinoctl.remote.spoken import Spoken
from rhinoctl.render.deploy import deploy_table, plan_table, undeploy_table
from rhinoctl.render.hosts import exec_table, hosts_table, log_text
from rhinoctl.render.members import add_table, remove_table
from rhinoctl.render.output import emit
from rhinoctl.render.upgrade import upgrade_table

AWAY = HostFault(
    host="w3",
    code="host-unreachable",
    reason="spark@w3:22 cannot be reached: no answer within 10 s",
    remedy="see that it runs",
)


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    file = tmp_path / "inventory.yml"
    ssh = f"ssh: {{user: spark, known_hosts: {tmp_path}/known, connect_s: 2}}\n"
    workers = "workers:\n  - host: w1.invalid\n"
    file.write_text(f"cluster: clicks\n{ssh}controller: {{host: c.invalid}}\n{workers}")
    return str(file)


def test_hosts_that_cannot_be_reached(run: Any, inventory: str) -> None:
    ended = run("deploy", "-i", inventory, "--json")
    assert ended.exit_code == Exit.PARTIAL
    view = json.loads(ended.stdout)
    assert {host["host"]: host["state"] for host in view["hosts"]} == {
        "controller": "unreachable",
        "w1.invalid": "unreachable",
    }
    assert {host["code"] for host in view["hosts"]} == {"host-unreachable"}
    again = run("replay", view["run"], "--json")
    assert again.exit_code == Exit.PARTIAL
    assert json.loads(again.stdout)["run"] not in ("", view["run"])


@pytest.mark.parametrize(
    "argv",
    [["undeploy"], ["stop"], ["stop", "w1.invalid"], ["restart"], ["hosts", "rotate-keys"]],
    ids=" ".join,
)
def test_what_asks_a_person_does_not_hang_in_cron(
    run: Any, inventory: str, argv: list[str]
) -> None:
    ended = run(*argv, "-i", inventory)
    assert ended.exit_code == Exit.USAGE
    assert "no terminal" in ended.stderr


def test_names_that_are_not_there(run: Any, inventory: str) -> None:
    for argv in (
        ["replay", "20260314-150926-5f3a"],
        ["deploy", "--limit", "w9", "-i", inventory],
        ["hosts", "list", "w9", "-i", inventory],
        ["logs", "w9", "-i", inventory],
        ["start", "-i", inventory],  # nothing was deployed from here
        ["upgrade", "-i", inventory],
        ["upgrade", "--check", "--limit", "w9", "-i", inventory],
        ["hosts", "add", "w9", "-i", inventory],
        ["hosts", "remove", "w1.invalid", "-i", inventory],
    ):
        ended = run(*argv, "--json")
        assert ended.exit_code == Exit.REFUSED
        assert json.loads(ended.stdout)["error"]["remedy"]


def text_of(table: RenderableType, capsys: Any, *, as_it_is: bool = False) -> str:
    emit(table, False, lambda each: each, as_it_is=as_it_is)
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


def deployed(**changes: Any) -> DeployView:
    fields: dict[str, Any] = {
        "file": "inventory.yml",
        "cluster": "clicks",
        "identity": "clicks-1f2e3d4c",
        "controller": "https://c1:7470",
        "hosts": (
            HostView(host="controller", roles=("controller",), state=HostState.UNCHANGED),
            HostView(
                host="w1",
                roles=("agent",),
                state=HostState.PLANNED,
                steps=("write agent/settings.json", "restart agent"),
                restarts=True,
            ),
            HostView(
                host="w2",
                roles=("agent",),
                state=HostState.FAILED,
                code="host-unfit",
                reason="port 7471: somebody listens there",
                remedy="see who it is: `ss -ltnp`",
            ),
        ),
    }
    return DeployView(**{**fields, **changes})


def test_a_plan_tells_steps_by_host_and_faults_last(capsys: Any) -> None:
    assert (
        text_of(plan_table(deployed(dry_run=True)), capsys)
        == """\
inventory.yml: cluster clicks (clicks-1f2e3d4c), 3 hosts

HOST  PARTS  STEPS
w1    agent  write agent/settings.json
             restart agent

1 host is as the inventory says

HOST  STATE   WHY                                             WHAT TO DO
w2    failed  port 7471: somebody listens there (host-unfit)  see who it is: `ss -ltnp`"""
    )


def test_a_deployment_ends_with_what_to_type(capsys: Any) -> None:
    text = text_of(deploy_table(deployed(run="20260314-150926-5f3a", seconds=12.0)), capsys)
    assert text.splitlines()[0].endswith("3 hosts, 12 s")
    assert text.splitlines()[-2:] == [
        "1 host not done; go on with: rhinoctl replay 20260314-150926-5f3a",
        "after a change of inventory.yml: rhinoctl deploy, which reads it again",
    ]
    done = HostView(host="w1", roles=("agent",), state=HostState.DONE, steps=("start agent",))
    text = text_of(deploy_table(deployed(hosts=(done,))), capsys)
    assert text.splitlines()[-2:] == [
        "nothing had to be done",
        "controller: https://c1:7470; look: rhinoctl status --cluster clicks",
    ]


def test_an_upgrade_that_ends_unwell_says_so(capsys: Any) -> None:
    done = HostView(host="w1", roles=("agent",), state=HostState.DONE, steps=("restart agent",))
    view = deployed(hosts=(done,), run="20260314-150926-5f3a", unwell=("job clicks lacks copies",))
    lines = text_of(deploy_table(view), capsys).splitlines()
    assert "job clicks lacks copies" in lines


def judged(**changes: Any) -> UpgradeView:
    runs = ReleaseView(name="0.1.0-2baadb4d8a9a", speaks=Spoken(version="0.1.0"))
    would = ReleaseView(name="0.2.0-73e91c60bb02", speaks=Spoken(version="0.2.0", protocol=2))
    can = UpgradeHost(host="w1", roles=("agent",), verdict=Verdict.CAN, runs=runs, would=would)
    fields: dict[str, Any] = {
        "file": "inventory.yml",
        "cluster": "clicks",
        "identity": "clicks-1f2e3d4c",
        "by": By.RACK,
        "hosts": (
            can,
            UpgradeHost(
                host="w2",
                roles=("agent",),
                verdict=Verdict.CANNOT,
                code="host-unreachable",
                reason="no answer within 10 s",
                remedy="see that it runs",
            ),
        ),
        "waves": (("w1", "w3"), ("w4",)),
        "troubles": ("worker w2 is not well",),
    }
    return UpgradeView(**{**fields, **changes})


def test_what_an_upgrade_would_do(capsys: Any) -> None:
    assert (
        text_of(upgrade_table(judged()), capsys)
        == """\
inventory.yml: cluster clicks (clicks-1f2e3d4c), 2 hosts

HOST  PARTS  RUNS                WOULD RUN           PROTOCOL  FORMAT  VERDICT
w1    agent  0.1.0-2baadb4d8a9a  0.2.0-73e91c60bb02  1 to 2    1       can be upgraded
w2    agent  -                   -                   -         -       cannot be upgraded

agents in this order, by rack: w1, w3; w4

HOST  WHY NOT                                   WHAT TO DO
w2    no answer within 10 s (host-unreachable)  see that it runs

not well now, which an upgrade waits for:
worker w2 is not well

1 host cannot be upgraded, so none would be"""
    )
    can = judged().hosts[:1]
    text = text_of(upgrade_table(judged(hosts=can, troubles=())), capsys)
    assert text.splitlines()[-1] == "1 host to be upgraded: rhinoctl upgrade"
    silent = judged(hosts=(), waves=(), troubles=(), silent="no controller answers")
    text = text_of(upgrade_table(silent), capsys)
    assert "no controller answers" in text
    assert text.splitlines()[-1] == "nothing to do"


def test_joining_tells_the_lines_and_what_to_type(capsys: Any) -> None:
    def shown(deployment: DeployView, *, written: bool) -> str:
        view = AddView(
            file="inventory.yml",
            cluster="clicks",
            worker="w3",
            host="w3",
            lines=("  - host: w3", "    rack: r1"),
            written=written,
            deployment=deployment,
        )
        return text_of(add_table(view), capsys)

    text = shown(deployed(dry_run=True), written=False)
    assert text.endswith("to be written into inventory.yml:\n\n  - host: w3\n    rack: r1")
    text = shown(deployed(run="20260314-150926-5f3a"), written=True)
    assert "rhinoctl replay 20260314-150926-5f3a" in text
    assert "w3 is in inventory.yml, but not deployed" in text
    assert "has joined" in shown(deployed(hosts=()), written=True)


def test_leaving_tells_how_far_it_is_and_what_to_type(capsys: Any) -> None:
    plan = RemovePlan(
        file="inventory.yml",
        cluster="clicks",
        worker="w3",
        host="w3",
        lost=False,
        wipe_data=False,
        steps=("one", "two"),
        lines=("  - {host: w3}",),
    )
    text = text_of(remove_table(RemoveView(plan=plan, dry_run=True)), capsys)
    assert text.splitlines()[-3:] == ["1. one", "2. two", "  - {host: w3}"]
    away = UndeployView(
        file="inventory.yml", cluster="clicks", wiped=False, hosts=(), faults=(AWAY,)
    )
    text = text_of(remove_table(RemoveView(plan=plan, undeployed=away)), capsys)
    assert "host-unreachable" in text
    assert "--lost" in text
    text = text_of(remove_table(RemoveView(plan=plan, deployment=deployed())), capsys)
    assert text.endswith("still in inventory.yml: repeat the command")
    done = RemoveView(plan=plan, deployment=deployed(hosts=()), written=True)
    assert text_of(remove_table(done), capsys).endswith("is out of inventory.yml")


def test_processes_are_a_line_each_and_one_that_died_says_why(capsys: Any) -> None:
    fine = ProcessView(
        host="w1",
        role="agent",
        release="1-a",
        kind="systemd",
        running=True,
        pid=42,
        since=1_773_500_000.0,
    )
    dead = ProcessView(
        host="w2",
        role="agent",
        release="1-a",
        kind="supervised",
        running=False,
        restarts=3,
        exit_code=3,
        words="no space",
    )
    view = HostsView(file="inventory.yml", cluster="clicks", processes=(fine, dead), faults=(AWAY,))
    lines = text_of(hosts_table(view), capsys).splitlines()
    (running,) = [line for line in lines if line.startswith("w1")]
    assert running.split()[1:4] == ["agent", "running", "42"]
    assert "03-14 14:53:20 UTC" in running
    text = " ".join(" ".join(lines).split())
    assert "w2: the agent was started again 3 times, ended with 3, wrote last: no space" in text
    assert "(host-unreachable)" in text
    killed = replace(
        dead, exit_code=-9, words='x refused problem={"code":"c","message":"m","remedy":"r"}'
    )
    text = text_of(hosts_table(replace(view, processes=(killed,))), capsys)
    assert "ended by SIGKILL, told why: m (c)" in text
    quiet = replace(fine, words="an ordinary line", exit_code=1)
    assert "ordinary" not in text_of(hosts_table(replace(view, processes=(quiet,))), capsys)


def test_hosts_that_fail_for_one_reason_are_one_row(capsys: Any) -> None:
    other = replace(AWAY, host="w5", reason="refused")
    faults = (AWAY, replace(AWAY, host="w4"), other)
    view = HostsView(file="inventory.yml", cluster="clicks", processes=(), faults=faults)
    rows = text_of(hosts_table(view), capsys).splitlines()[-2:]
    assert all(row.startswith(host) for row, host in zip(rows, ("w3, w4 ", "w5 "), strict=True))


def test_the_words_of_a_process_s_line_are_whole_on_a_narrow_terminal(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    process = ProcessView(
        host="controller.example.com",
        role="controller",
        release="0.1.0-2baadb4d8a9a",
        kind="supervised",
        running=True,
        pid=1234567,
        since=1_773_500_000.0,
    )
    agent = replace(process, host="w1.example.com", role="agent", kind="systemd-user")
    both = (replace(process, host="controller"), agent)
    view = HostsView(file="inventory.yml", cluster="clicks", processes=both, faults=())
    words = text_of(hosts_table(view), capsys).split()
    assert {"controller", "supervised", "systemd-user", "1234567", "running"} <= set(words)
    assert words.count("controller") == 2
    assert words.count("0.1.0-2baadb4d8a9a") == 1, "one that all have is said once"
    newer = replace(agent, release="0.1.1-2baadb4d8a9b")
    lines = text_of(hosts_table(replace(view, processes=(both[0], newer))), capsys).splitlines()
    assert "release 0.1.0-2baadb4d8a9a: controller" in lines
    assert "release 0.1.1-2baadb4d8a9b: w1.example.com" in lines


def test_ctrl_c_says_what_a_restart_has_left(
    run: Any, inventory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restart(*arguments: Any) -> None:
        arguments[-1]("w1: restarting the agent")
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "restart", restart)
    ended = run("restart", "--yes", "-i", inventory)
    assert ended.exit_code == 130
    assert "rhinoctl start" in ended.stderr
    assert ended.stderr.count("w1: restarting the agent") == 2


def test_output_of_hosts_is_shown_as_it_is(capsys: Any) -> None:
    long = "x" * 300
    view = ExecView(
        command="df",
        hosts=(
            Executed(host="w1", exit_code=0, stdout=f"{long}\n", stderr=""),
            Executed(host="w2", exit_code=2, stdout="", stderr="[bold]no[/bold]\n"),
        ),
        faults=(),
    )
    lines = text_of(exec_table(view), capsys, as_it_is=True).splitlines()
    assert lines == ["w1", long, "", "w2 (exit code 2)", "[bold]no[/bold]"]
    log = log_text(LogView(host="w1", role="agent", lines=(long, "b")))
    assert text_of(log, capsys, as_it_is=True) == f"{long}\nb"


def test_what_is_kept_after_an_undeploy_is_said(capsys: Any) -> None:
    host = UndeployedHost(host="w1", state=HostState.DONE, kept=("/data1/rhino",))
    nothing = UndeployedHost(host="w2", state=HostState.UNCHANGED, kept=())
    view = UndeployView(
        file="inventory.yml", cluster="clicks", wiped=False, hosts=(host, nothing), faults=(AWAY,)
    )
    text = text_of(undeploy_table(view), capsys)
    assert "w1    removed            /data1/rhino" in text
    assert "w2    nothing to remove  -" in text
    assert "host-unreachable" in text
