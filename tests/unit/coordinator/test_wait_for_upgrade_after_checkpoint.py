"""Time in which a return waited for a checkpoint in flight does not count (`Restores._deadline`)."""

from __future__ import annotations

from cedana_sched.model.orders import Find
from cedana_sched.model.policy import CheckpointPolicy
from tests.unit.coordinator.core_builders import Told
from tests.unit.coordinator.restore_stories import start


def test_a_newer_format_is_waited_for_also_after_a_long_checkpoint() -> None:
    told = start(Told().running().preempt().frozen(), policy=CheckpointPolicy(restore_deadline_seconds=90))
    told.after(50).committed().killed()
    assert told.order(Find).newer_seconds > 0, "the snapshot that was waited for is passed over at once"
