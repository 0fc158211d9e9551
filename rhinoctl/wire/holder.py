"""The loop that carries out the batch machine's effects: the holder of the session at work.

The Spark driver runs a batch with it, the controller an epoch record. It decides nothing: it sends,
waits, keeps time and hands every outcome to `rhinoctl.protocol.batches`.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping

from rhinoctl import limits
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.ports import Address, Clock, Envelope, Wire
from rhinoctl.protocol.sessions import Lineage

StageFn = Callable[[batches.Stage], batches.Staged]
ProposalFn = Callable[[], Epoch | None]


def _nothing_to_stage(stage: batches.Stage) -> batches.Staged:
    raise LookupError(f"an epoch record stages nothing, not {stage.time}")


def _no_proposal() -> Epoch | None:
    return None


def _nobody_cares(worker: WorkerId) -> None:
    """For a run of which nobody is told who is silent."""


class BatchRun:
    """One batch, or one epoch change, on its way to DONE or FAILED.

    `addresses` are those of the inventory, for workers that no epoch at hand names any more.
    `stage` blocks while the Spark job runs. `proposal` is asked for the controller's newest offer
    when the rows are staged, just before the record is written, and in between for a cut.
    `silent` hears of workers from which no answer came.
    """

    def __init__(
        self,
        *,
        wire: Wire,
        clock: Clock,
        lineage: Lineage,
        task: batches.Task,
        addresses: Mapping[WorkerId, str] | None = None,
        stage: StageFn = _nothing_to_stage,
        proposal: ProposalFn = _no_proposal,
        silent: Callable[[WorkerId], object] = _nobody_cares,
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._addresses = addresses or {}
        self._stage = stage
        self._proposal = proposal
        self._silent = silent
        self._requests: dict[int, WorkerId] = {}
        self._timers: list[tuple[float, int, batches.Send]] = []
        self._serial = itertools.count()
        self._deadline = clock.monotonic()
        self.seconds: dict[batches.Phase, float] = {}
        self._entered = clock.monotonic()
        offered = proposal()
        cut = offered if offered is not None and offered.is_cut else None
        self.state, effects = batches.begin(lineage, task, cut)
        self._carry_out(effects)

    @property
    def ended(self) -> bool:
        return self.state.ended

    def step(self, timeout_s: float) -> None:
        """Wait for one envelope at most so long, and for timers that are due before."""
        wait = min(timeout_s, self._next_due() - self._clock.monotonic())
        envelope = self._wire.receive(max(wait, 0.0))
        if envelope is not None:
            self.deliver(envelope)
        self.tick()

    def deliver(self, envelope: Envelope) -> bool:
        """Take an answer, if it is one to this run's newest question to a worker."""
        number = -1 if envelope.request is None else envelope.request
        worker = self._requests.pop(number, None)
        if worker is None or self.state.ended:
            return worker is not None
        if envelope.message is None:
            self._silent(worker)
            self._event(batches.Lost(worker=worker, detail=envelope.detail))
        else:
            self._event(batches.Answered(worker=worker, message=envelope.message))
        return True

    def tick(self) -> None:
        """Take up a cut, send what is due, and end the phase if its deadline has passed."""
        offered = self._proposal()
        if offered is not None and offered.is_cut and not self.state.ended:
            self._event(batches.Proposed(epoch=offered))
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now and not self.state.ended:
            self._send(heapq.heappop(self._timers)[2])
        if now >= self._deadline and not self.state.ended:
            self._event(batches.Expired())

    def _next_due(self) -> float:
        return min([self._deadline, *(at for at, _, _ in self._timers[:1])])

    def _event(self, event: batches.Event) -> None:
        before = (self.state.phase, self.state.attempt)
        self.state, effects = batches.step(self.state, event)
        if (self.state.phase, self.state.attempt) != before:
            now = self._clock.monotonic()
            spent = self.seconds.get(before[0], 0.0) + now - self._entered
            self.seconds[before[0]] = spent
            self._entered = now
            self._requests.clear()
            self._timers.clear()
        self._carry_out(effects)

    def _carry_out(self, effects: tuple[batches.Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, batches.Deadline):
                self._deadline = self._clock.monotonic() + effect.after_s
            elif isinstance(effect, batches.Stage):
                staged = self._stage(effect)
                self._event(batches.Proposed(epoch=self._proposal()))
                self._event(staged)
                return
            elif effect.delay_s > 0:
                due = self._clock.monotonic() + effect.delay_s
                heapq.heappush(self._timers, (due, next(self._serial), effect))
            else:
                self._send(effect)

    def _send(self, send: batches.Send) -> None:
        """A worker of which no address is known stays silent, until the phase's deadline."""
        address = self._address(send.worker)
        if address is None:
            return
        number = self._wire.send(
            address, send.message, timeout_s=limits.REQUEST_TIMEOUT_S[self.state.phase.value]
        )
        self._requests[number] = send.worker

    def _address(self, worker: WorkerId) -> Address | None:
        """From the newest epoch that names it, else from the inventory."""
        for epoch in self._epochs():
            if worker in epoch.workers:
                return Address(epoch.workers[worker])
        known = self._addresses.get(worker)
        return None if known is None else Address(known)

    def _epochs(self) -> Iterator[Epoch]:
        state = self.state
        records = [state.record] if state.record is not None else []
        for answer in state.fences.values():
            records += [each for each in (answer.sealed, answer.decided) if each is not None]
        known = (state.lineage.epoch, state.task.change, state.proposal)
        yield from (epoch for epoch in known if epoch is not None)
        yield from (record.next_epoch for record in records)

    def run(self) -> batches.BatchState:
        """Step until the batch has ended; looking often, for what is awaited may be given up."""
        while not self.state.ended:
            self.step(limits.CUT_LOOK_S)
        return self.state
