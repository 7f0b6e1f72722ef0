"""What is told is a sentence for the owner of a Job: his pod's name, its snapshot as annotations name it, figures."""

from __future__ import annotations

from cedana_sched.coordinator.core.instructions import Severity, Tell
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure
from cedana_sched.model.preemption import After
from tests.unit.coordinator.core_builders import Told, victim


def _texts(told: Told) -> dict[str, str]:
    return {one.kind: one.text for one in told.said if isinstance(one, Tell)}


def test_an_eviction_is_told_from_its_begin_to_its_release() -> None:
    told = Told().running().preempt()
    started = "Checkpoint md/0 of name-of-w1 started: kueue evicts it: InCohortReclamation"
    assert _texts(told)["CheckpointStarted"] == started
    told.frozen().now += 3
    told.committed().killed()
    assert _texts(told)["EvictionReleased"] == "Eviction released after 3.0 s: 1 saved"


def test_a_backup_is_told_without_an_eviction() -> None:
    assert "evicts" not in _texts(Told().running().preempt(after=After.CONTINUE))["CheckpointStarted"]


def test_who_is_let_go_without_a_snapshot_is_warned_of() -> None:
    told = Told().running().preempt().frozen().failed().aborted()
    (released,) = [one for one in told.said if isinstance(one, Tell) and one.kind == "EvictionReleased"]
    assert released.text.endswith("1 let go without a snapshot")
    assert released.severity is Severity.WARNING
    assert [one.name for one in released.victims] == ["name-of-w1"], "nothing but the pod is evicted"


def test_who_is_to_be_kept_running_is_warned_of_as_well() -> None:
    """Kueue evicts it all the same."""
    policy = CheckpointPolicy(on_checkpoint_failure=OnCheckpointFailure.KEEP_RUNNING)
    told = Told().running().preempt(victim(policy=policy)).frozen().failed().aborted()
    (released,) = [one for one in told.said if isinstance(one, Tell) and one.kind == "EvictionReleased"]
    assert released.text.endswith("1 not saved, to be kept running")
    assert released.severity is Severity.WARNING
