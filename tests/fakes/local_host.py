"""A host that is this machine: commands are run as `SshHost` has them run, without SSH."""

import os
import signal
import subprocess

from rhinoctl.errors import CommandTimeout
from rhinoctl.remote.host import Command, Done


class LocalHost:
    """`rhinoctl.remote.host.Host`. Each command has a session of its own, which ends with it; what
    made another one for itself goes on, as it would over SSH."""

    def __init__(self, name: str = "here", path: str = "/usr/bin:/bin") -> None:
        self.name = name
        self.ran: list[Command] = []
        self._path = path

    def run(self, command: Command) -> Done:
        self.ran.append(command)
        with command.open_input() as given:
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"PATH": self._path, "HOME": "/nowhere", "LC_ALL": "C"},
                start_new_session=True,
            )
            try:
                out, err = process.communicate(given.read(), command.timeout_s or 60.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise CommandTimeout(f"{self.name}: {command.what}", remedy="") from None
        return Done(process.returncode, out, err)

    def close(self) -> None: ...
