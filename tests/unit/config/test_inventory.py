"""Inventories: what they mean, and what is said of those with mistakes."""

import re
from pathlib import Path

import pytest

from rhinoctl.config.inventory import Inventory, Part, parse_inventory, read_inventory
from rhinoctl.errors import InvalidInventory, NoInventory

LEAST = """\
cluster: clicks
controller: {host: c1}
workers:
  - host: w1
  - host: w2
"""


def valid(text: str) -> Inventory:
    inventory, mistakes = parse_inventory(text)
    assert inventory is not None, mistakes
    return inventory


def mistakes_of(text: str) -> list[tuple[int, str]]:
    inventory, mistakes = parse_inventory(text)
    assert inventory is None
    assert mistakes
    return [(mistake.line, mistake.what) for mistake in mistakes]


def test_the_least_that_can_be_said_has_defaults_for_the_rest() -> None:
    inventory = valid(LEAST)
    assert [worker.id for worker in inventory.workers] == ["w1", "w2"]
    assert inventory.workers[0].port == 7471
    assert inventory.workers[0].disks == ["/var/lib/rhinoctl/worker"]
    assert inventory.controller.ssh.known_hosts == "~/.ssh/known_hosts"
    assert not inventory.controller.ssh.sudo


def test_what_is_said_at_the_top_holds_below_unless_it_is_said_anew() -> None:
    text = "ssh: {user: spark, port: 2222}\nlimits: {cpus: 4}\nports: {agent: 9000}\n" + LEAST
    text += "    ssh: {port: 22, sudo: true}\n    limits: {memory_mb: 1000}\n    port: 9001\n"
    first, second = valid(text).workers
    assert (first.ssh.user, first.ssh.port, first.ssh.sudo) == ("spark", 2222, False)
    assert (second.ssh.user, second.ssh.port, second.ssh.sudo) == ("spark", 22, True)
    assert (first.limits.cpus, first.limits.memory_mb, first.port) == (4, None, 9000)
    assert (second.limits.cpus, second.limits.memory_mb, second.port) == (4, 1000, 9001)
    assert valid(text).controller.ssh.port == 2222


def test_a_worker_can_go_back_to_no_limit() -> None:
    text = "limits: {memory_mb: 1000}\n" + LEAST + "    limits: {memory_mb: null}\n"
    assert [worker.limits.memory_mb for worker in valid(text).workers] == [1000, None]


def test_headings_with_nothing_below_are_as_good_as_none() -> None:
    assert valid("ssh:\nports:\n# nothing\nlimits:\nagent:\n" + LEAST) == valid(LEAST)


def test_all_mistakes_are_found_at_once_each_with_its_line() -> None:
    found = mistakes_of(
        "clustr: clicks\n"
        "controller: {host: c1, leases: 5}\n"
        "ssh:\n"
        "  port: '22'\n"
        "  sudo: 1\n"
        "workers:\n"
        "  - host: w 1\n"
        "    slots: yes\n"
    )
    assert [line for line, _ in found] == [1, 1, 2, 4, 5, 7, 8]
    whats = " ".join(what for _, what in found)
    assert "`clustr` is not known; did you mean `cluster`?" in whats
    assert "`controller.leases` is not known; did you mean `lease_s`?" in whats
    assert "not '22'" in whats
    assert "not yes" in whats


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 0, "is a mapping"),
        ("- w1\n", 0, "is a mapping"),
        ("cluster: [\n", 2, "not YAML"),
        ("cluster: a\tb\x00\n", 0, "not YAML"),
        (LEAST + "cluster: other\n", 6, "`cluster` is there twice, first in line 1"),
        (LEAST + "? [a, b]\n: c\n", 6, "a key is a word"),
        ("ssh: &s {port: 1}\nports: {<<: *s}\n" + LEAST, 2, "`<<` is not taken"),
        ("ssh: &s [*s]\n" + LEAST, 1, "part of"),
        ("cluster: !!python/object:os.system x\n", 1, "not YAML"),
        ("cluster: 2026-13-45\n", 1, "not YAML"),
        ("format: 2\n" + LEAST, 1, "`format`"),
        (LEAST.replace("w2", "W1"), 5, "is there twice, first in line 4"),
        (LEAST + "    name: w1\n", 6, "two workers are called w1, the first in line 4"),
        (LEAST + "    name: controller\n", 5, "is the controller's name in every table"),
        (LEAST.replace("w2", "'fe80::1'"), 5, "give it a `name`"),
        (LEAST + "    disks: []\n", 6, "`workers[2].disks`"),
        (LEAST + "    disks: [data]\n", 6, "not an absolute path"),
        (LEAST + "    disks: [/a/../b]\n", 6, "not an absolute path"),
        (LEAST + "    disks:\n      - /a\n      - /a/b\n", 8, "/a/b and /a are not apart"),
        (LEAST + "    disks: [/opt/rhinoctl/data]\n", 6, "are not apart"),
        (LEAST + "    disks: ['/a; rm b']\n", 6, "not an absolute path"),
        (LEAST.replace("c1", "w1") + "    port: 1\nports: {agent: 7470}\n", 4, "would both listen"),
        (LEAST + "    ssh: {jump: w2}\n", 6, "its own jump host: `jump: null`"),
        (LEAST.replace("w2", "300.1.1.1"), 5, "`host`: 300.1.1.1 is no address"),
        (LEAST.replace("c1", "10.0.0"), 2, "`host`: 10.0.0 is no address"),
        (LEAST + "    address: 10.0.0.256\n", 6, "`address`: 10.0.0.256 is no address"),
        (LEAST + "    ssh: {jump: 1.2.3.4.5}\n", 6, "`jump`: 1.2.3.4.5 is no address"),
        (LEAST + "    port: 70000\n", 6, "not 70000"),
        ("cluster: clicks\ncontroller: {host: c1}\nworkers:\n", 3, "`workers`"),
        (LEAST + "    disks: []\n", 6, "it takes at least one"),
        (LEAST.replace("{host: c1}", "c1"), 2, "should be a mapping, such as {host: …}, not 'c1'"),
        (LEAST.replace("clicks", "Clicks"), 1, "lower-case letters"),
        (LEAST.replace("w2", "w" * 254), 5, "1 to 253"),
        (LEAST.replace("clicks", "c" * 64), 1, "1 to 63"),
        (LEAST + "\tdisks: [/d]\n", 6, "use spaces"),
        (LEAST + "    address: w1\n", 5, "would both listen on port 7471 of w1"),
        (LEAST + "    address: c1\n    port: 7470\n", 7, "the controller would both listen"),
        (LEAST + "    port: 65530\n", 6, "take 65471 at most"),
        ("ports: {agent: 65472}\n" + LEAST, 1, "take 65471 at most"),
        ("ports: {controller: 22}\n" + LEAST, 1, "sshd"),
        ("ports: {agent: 22}\n" + LEAST, 1, "sshd"),
        (LEAST + "    port: 2222\n    ssh: {port: 2222}\n", 6, "sshd"),
        (LEAST.replace("w2", "localhost"), 5, "where each host finds itself"),
        (LEAST.replace("{host: c1}", "{host: 127.0.0.1}"), 2, "where each host finds itself"),
        (LEAST + "    address: '::1'\n", 6, "where each host finds itself"),
        (LEAST + "    limits: {memory_mb: 1}\n", 6, "256"),
        (LEAST + "    limits: {cpus: 0.0001}\n", 6, "0.1"),
        (
            LEAST.replace("c1", "w2") + "    disks: [/var/lib/rhinoctl/controller/d]\n",
            6,
            "/var/lib/rhinoctl/controller/d and /var/lib/rhinoctl/controller are not apart",
        ),
    ],
)
def test_mistakes(text: str, line: int, what: str) -> None:
    found = mistakes_of(text)
    assert (line, True) in [(number, what in said) for number, said in found], found


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/bin", "/etc", "/etc/rhino", "/home", "/lib64", "/opt", "/root", "/run/rhino"),
        *("/srv", "/tmp", "/tmp/rhino", "/usr", "/usr/lib/rhino", "/var", "/var/lib", "/dev/shm/r"),
    ],
)
def test_directories_of_others_are_refused_wherever_they_are_named(path: str) -> None:
    for text, line in (
        (f"install_dir: {path}\n{LEAST}", 1),
        (LEAST.replace("host: c1", f"host: c1, data_dir: {path}"), 2),
        (LEAST + f"    disks: [/d1, {path}]\n", 6),
    ):
        assert (line, True) in [
            (n, "not rhinoctl's alone" in what) for n, what in mistakes_of(text)
        ]


@pytest.mark.parametrize(
    "path",
    [
        *("/data1/rhino", "/mnt/disk", "/d1", "/home/spark/rhino", "/root/rhino", "/library"),
        *("/usr/local/rhino", "/var/lib/rhino", "/opt/r", "/tmpfs/r"),
    ],
)
def test_a_directory_of_its_own_may_be_anywhere_else(path: str) -> None:
    assert valid(LEAST + f"    disks: [{path}]\n").workers[1].disks == [path]


def test_contradictions_are_told_beside_values_of_the_wrong_type() -> None:
    """Nobody mends half, to be told of the rest then."""
    found = mistakes_of(
        "cluster: Clicks\n"
        "controller: {host: w1, data_dir: /data}\n"
        "ports: {controller: x, agent: 65500}\n"
        "limits: {cpu: 4}\n"
        "workers:\n"
        "  - {host: w1, disks: [/data/1, 5]}\n"
        "  - {host: w2, slots: many, host2: w2}\n"
        "  - {host: w 3, ssh: {port: ssh}}\n"
        "  - {name: w2}\n"
        "  - w1\n"
        "  - {host: w1, rack: r 1}\n"
    )
    whats = {line: [what for at, what in found if at == line] for line, _ in found}
    assert any("/data/1 and /data are not apart" in what for what in whats[6])
    assert any("is there twice, first in line 6" in what for what in whats[11])
    assert any("two workers are called w2, the first in line 7" in what for what in whats[9])
    assert any("take 65471 at most" in what for what in whats[3])
    assert "unknown" not in " ".join(what for _, what in found)


@pytest.mark.parametrize(
    "where", ["controller: {host: localhost}", "controller: {host: 127.0.0.1}"]
)
def test_a_cluster_may_be_all_on_one_machine(where: str) -> None:
    text = LEAST.replace("controller: {host: c1}", where).replace("host: w1", "host: 127.0.0.2")
    assert valid(text.replace("host: w2", "host: 127.0.0.3"))


def test_machines_behind_one_address_have_directories_and_ports_of_their_own() -> None:
    text = "cluster: c\ncontroller: {host: gate, ssh: {port: 2201}, data_dir: /data}\nworkers:\n"
    text += "  - {host: gate, address: a2, name: w1, ssh: {port: 2202}, disks: [/data/1]}\n"
    text += "  - {host: gate, address: a3, name: w2, ssh: {port: 2203}, disks: [/data/1]}\n"
    assert valid(text)
    found = mistakes_of(text.replace("address: a3", "address: A2"))
    assert [line for line, _ in found] == [5]


def test_aliases_of_aliases_end() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for here, before in ("ba", "cb", "dc", "ed", "fe", "gf", "hg"):
        text += f"{here}: &{here} [{', '.join([f'*{before}'] * 10)}]\n"
    assert "values" in mistakes_of(text)[0][1]
    assert "MB" in mistakes_of("# " + "x" * (1 << 20) + "\n" + LEAST)[0][1]


def test_a_file_is_read_or_the_error_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    with pytest.raises(NoInventory, match="there is no inventory"):
        read_inventory(path)
    with pytest.raises(NoInventory, match="cannot be read"):
        read_inventory(tmp_path)
    path.write_bytes(b"cluster: \xff\n")
    with pytest.raises(InvalidInventory, match="UTF-8"):
        read_inventory(path)
    path.write_text("\n".join(f"k{n}: 1" for n in range(40)))
    with pytest.raises(InvalidInventory, match=r"(?s)line 2: .*line 40: ") as raised:
        read_inventory(path)
    assert raised.value.message.count("\n") == 43
    path.write_text(LEAST)
    assert read_inventory(path) == valid(LEAST)


def test_every_key_is_explained() -> None:
    text = (Path(__file__).parents[3] / "docs/operations/inventory.md").read_text()
    explained = {key.split(".")[-1] for key in re.findall(r"`([a-z_.]+)`", text)}
    assert {key for part in Part.__subclasses__() for key in part.model_fields} <= explained
