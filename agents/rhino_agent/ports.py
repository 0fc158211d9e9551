"""What every part of the agent shares: ports, settings, and questions that await answers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rhino_agent.digests import Digester, ProcessDigester
from rhino_agent.launcher import Launcher
from rhino_agent.settings import AgentSettings
from rhinoctl.ids import NO_JOB, JobUid
from rhinoctl.protocol.messages import Header, Message
from rhinoctl.protocol.ports import Address, Buffer, Clock, Envelope, Wire
from rhinoctl.state.disk import RoomyDisk

Answer = Callable[[Envelope], None]

log = logging.getLogger("rhino.agent")


def event(name: str, **keys: object) -> None:
    """One log line: a fixed name and its keys (style, rule 14)."""
    log.info("%s %s", name, " ".join(f"{key}={value}" for key, value in keys.items()))


@dataclass(slots=True)
class Ports:
    """The agent's world. `ask` sends a request and names who hears the answer; `digester` makes
    what makes logical digests, one at a time."""

    settings: AgentSettings
    clock: Clock
    wire: Wire
    disk: RoomyDisk
    launcher: Launcher
    digester: Callable[[], Digester] = ProcessDigester
    incarnation: int = 0
    _answers: dict[int, Answer] = field(default_factory=dict)

    def header(self, job: JobUid = NO_JOB, session: int = 0, epoch: int = 0) -> Header:
        """The header of this agent's messages."""
        return Header(
            cluster=self.settings.cluster,
            job=job,
            session=session,
            epoch=epoch,
            incarnation=self.incarnation,
        )

    def ask(
        self,
        to: Address,
        message: Message,
        answer: Answer,
        payload: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> None:
        """Send a request; `answer` is called with its one envelope, in this loop."""
        number = self.wire.send(to, message, payload, timeout_s=timeout_s)
        self._answers[number] = answer

    def answered(self, envelope: Envelope) -> None:
        """Hand an answer to whoever asked."""
        assert envelope.request is not None
        answer = self._answers.pop(envelope.request, None)
        if answer is not None:
            answer(envelope)
