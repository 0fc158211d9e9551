"""Whether a worker may be taken away."""

import pytest

from rhinoctl.errors import Busy
from rhinoctl.ops.unused import check_unused
from rhinoctl.protocol.handover import Phase
from rhinoctl.protocol.views import Health, StatusView
from tests.fakes.controller import operation


@pytest.mark.parametrize(("phase", "helps"), [(Phase.WARMING, "list"), (Phase.PAUSED, "resume")])
def test_an_operation_may_give_it_some_and_a_paused_one_does_not_end_by_itself(
    phase: Phase, helps: str
) -> None:
    status = StatusView(
        cluster="c1",
        health=Health.OK,
        workers=(),
        jobs=(),
        operations=(operation(phase=phase),),
        findings=(),
    )
    with pytest.raises(Busy) as caught:
        check_unused(status, "w9", lost=True)
    assert f"rhinoctl op {helps}" in caught.value.remedy
