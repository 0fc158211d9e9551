"""What people do for a cluster where the design asks for them: they look now and then, and type it.

They restore offsets of which the query was told that they differ, recover the controller's store
when workers object to it, and bind a job to a new stream. What they did is noted.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rhinoctl.control.controller import Controller, Waiting
from rhinoctl.errors import RhinoError
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import JOB
from tests.fakes.world_spark import SparkDirectory
from tests.sim.cluster import SimWorld


class Person:
    """One person. `note` takes what they have done."""

    def __init__(self, world: SimWorld, note: Callable[[str], None]) -> None:
        self._world = world
        self._note = note
        self._recovering: tuple[Controller, Future[Any]] | None = None

    # --- the controller's store ------------------------------------------------------------------

    def recover(self, *without: str) -> None:
        """`controller recover`, if a worker objects to the store, or it has no job. It is refused
        while a worker is silent that is not left out; then it is typed again later."""
        controller = self._world.controller
        status = None if controller is None else controller.status()
        if controller is None or status is None or (status.jobs and not status.refused_by):
            return
        if self._recovering is not None and self._recovering[0] is controller:
            return
        request = views.RecoverRequest(without=tuple(map(WorkerId, without)), dry_run=False)
        future = self._world.submit(lambda c: c.recover(request))
        self._recovering = (controller, future)
        future.add_done_callback(self._recovery_answered)

    def _recovery_answered(self, future: "Future[Any]") -> None:
        fault = future.exception()
        found = None if fault is not None else future.result()
        if isinstance(found, Waiting):
            found.answer.add_done_callback(self._recovery_answered)
            return
        self._recovering = None
        if found is not None and found.needed:
            self._note(f"a person has recovered the store, reign {found.reign}")
        elif isinstance(fault, RhinoError):
            self._note(f"a recovery of the store is refused: {fault}")

    # --- the query -------------------------------------------------------------------------------

    def bind(self, directory: SparkDirectory) -> None:
        """`job bind --new-stream`, unless the stream has begun. It is refused for a while after the
        former one has ended, and forgotten by a store that is lost: then it is typed again, as the
        query's error says."""
        runs = [query for query in self._world.queries if query.directory is directory]
        begun = any(run.sessions for run in runs)
        unknown = any(run.unknown for run in runs if run.running)
        if (begun and not unknown) or not any(run.failures for run in runs):
            return
        try:
            self._world.submit(lambda c: c.bind(JOB, views.BindRequest(new_stream=True)))
        except (RhinoError, ConnectionError):
            self._note("nobody takes the binding of the new stream")

    def resume(self) -> None:
        """`op resume` of all that is paused."""
        controller = self._world.controller
        for view in () if controller is None else controller.operation_list().operations:
            if view.phase is Phase.PAUSED:
                self._note(f"{view.id} is resumed")
                self._resume(view.id)

    def _resume(self, op: str) -> None:
        try:
            self._world.submit(lambda c: c.resume(op))
        except (RhinoError, ConnectionError):
            self._note(f"nobody takes the resumption of {op}")
