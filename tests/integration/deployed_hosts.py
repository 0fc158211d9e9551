"""A cluster's hosts for tests of deployment: each a real sshd in network, mount and UTS namespaces,
and the inventory that names them. As on hardened hosts, nothing can be executed in /tmp. All of it
is gone after `close`, whatever happened."""

from pathlib import Path

from tests.integration.hosts import Hosts
from tests.integration.real_hosts import RealHost, make_key, needed

SSH_PORT = 22


class DeployHosts:
    """The controller's host `c1` and so many workers' hosts, at a bridge whose links can be cut."""

    def __init__(self, directory: Path, workers: int, user: str = "root") -> None:
        needed()
        self.directory = directory
        self._user = user
        self.inventory = directory / "inventory.yml"
        self.hosts: dict[str, RealHost] = {}
        self._network = Hosts(workers + 1)
        self._networks = dict(zip(self.names(), self._network.names, strict=True))
        try:
            key = make_key(directory / "id")
            for name, network in self._networks.items():
                host = RealHost(
                    directory / "hosts" / name,
                    address=self._network.address(network),
                    enter=("ip", "netns", "exec", network),
                    port=SSH_PORT,
                    noexec=True,
                )
                self.hosts[name] = host
                host.admit(key.with_suffix(".pub"))
                if user != "root":
                    host.add_account(user)
                host.start()
        except BaseException:
            self.close()
            raise
        self.write_inventory()

    def names(self) -> list[str]:
        """All hosts, the controller's first."""
        return ["c1", *self.workers()]

    def workers(self) -> list[str]:
        return [f"w{n}" for n in range(1, len(self._network.names))]

    @property
    def gateway(self) -> str:
        """This machine's address among the hosts."""
        return self._network.gateway

    def write_inventory(
        self,
        more: str = "",
        controller: str = "lease_s: 5",
        worker: str = "slots: 8",
        workers: int | None = None,
    ) -> None:
        """The inventory of all hosts, or of the first `workers` of them, by their addresses; `more`
        goes to its top, the others are said of the controller and of each worker."""
        known = self.directory / "known_hosts"
        known.write_text("".join(host.known() for host in self.hosts.values()))
        listed = "".join(
            f"  - {{host: {self.hosts[name].address}, name: {name}, rack: {name}, {worker}}}\n"
            for name in self.workers()[:workers]
        )
        identity = self.directory / "id"
        ssh = f"user: {self._user}, identity: {identity}, known_hosts: {known}, connect_s: 4"
        self.inventory.write_text(
            f"cluster: clicks\n{more}ssh: {{{ssh}}}\n"
            f"controller: {{host: {self.hosts['c1'].address}, {controller}}}\n"
            f"workers:\n{listed}"
        )

    def cut(self, name: str) -> None:
        """From now on nothing gets to the host or away from it."""
        self._network.cut(self._networks[name])

    def mend(self, name: str) -> None:
        """Connect the host again."""
        self._network.mend(self._networks[name])

    def slow(self, name: str, mbit: int) -> None:
        """From now on no more than so many megabits a second get to the host or away; 0: mended."""
        self._network.slow(self._networks[name], mbit)

    def close(self) -> None:
        """End all that runs on the hosts, and remove them."""
        for host in self.hosts.values():
            host.stop()
        self._network.close()
