"""What is told is a sentence for the owner of a Job: his pod's name, its snapshot as annotations name it, figures."""

from __future__ import annotations

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core import HoldPlaced
from cedana_sched.coordinator.core.instructions import PublishEvent, Severity
from cedana_sched.model.orders import SnapshotFound, StartedCold
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure
from cedana_sched.model.preemption import AfterCommit
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload


def _texts(told: Told) -> dict[str, str]:
    return {one.kind: one.text for one in told.said if isinstance(one, PublishEvent)}


def test_an_eviction_is_told_from_its_begin_to_its_release() -> None:
    told = Told().running().preempt()
    started = "Checkpoint md/0 of name-of-w1 started: kueue evicts it: InCohortReclamation"
    assert _texts(told)["CheckpointStarted"] == started
    told.frozen().now += 3
    told.committed().killed()
    assert _texts(told)["EvictionReleased"] == "Eviction released after 3.0 s: 1 saved"


def test_a_backup_is_told_without_an_eviction() -> None:
    assert "evicts" not in _texts(Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING))["CheckpointStarted"]


def test_who_is_let_go_without_a_snapshot_is_warned_of() -> None:
    told = Told().running().preempt().frozen().failed().aborted()
    (released,) = [one for one in told.said if isinstance(one, PublishEvent) and one.kind == "EvictionReleased"]
    assert released.text.endswith("1 evicted without a snapshot")
    assert released.severity is Severity.WARNING
    assert [one.name for one in released.victims] == ["name-of-w1"], "nothing but the pod is evicted"


def test_who_is_to_be_kept_running_is_warned_of_as_well() -> None:
    """Kueue evicts it all the same."""
    policy = CheckpointPolicy(on_checkpoint_failure=OnCheckpointFailure.KEEP_RUNNING)
    told = Told().running().preempt(victim(policy=policy)).frozen().failed().aborted()
    (released,) = [one for one in told.said if isinstance(one, PublishEvent) and one.kind == "EvictionReleased"]
    assert released.text.endswith("1 not saved, to be kept running")
    assert released.severity is Severity.WARNING


def _warnings(told: Told) -> dict[str, str]:
    return {
        one.kind: one.text for one in told.said if isinstance(one, PublishEvent) and one.severity is Severity.WARNING
    }


def _returns(told: Told) -> Told:
    return told.report(Starting(workload("w2"), MD, POLICY)).tell(SnapshotFound("restore.w2", ref(1)))


def test_a_hold_is_told_with_its_longest_time() -> None:
    told = Told().running().preempt().tell(HoldPlaced("s1", None))
    assert _texts(told) == {"EvictionHeld": "Eviction held for checkpoint, at most 60s"}
    assert _warnings(told) == {}


def test_a_preemption_that_is_taken_back_is_told_and_no_alarm() -> None:
    told = Told().running().preempt().frozen().cancel()
    cancelled = "Checkpoint md/0 of name-of-w1 is not needed: the preemption was cancelled: the job was withdrawn"
    assert _texts(told) == {"CheckpointCancelled": cancelled}
    assert _warnings(told) == {}


def test_a_return_is_told_before_it_begins() -> None:
    told = _returns(Told().running().preempt().frozen().committed().killed())
    assert _texts(told) == {"RestoreScheduled": "Will resume name-of-w2 from md/0@1 on node n1"}
    assert _warnings(told) == {}


def test_a_node_that_does_not_confirm_is_named_two_minutes_after_the_deadline() -> None:
    told = Told().running().preempt().frozen().committed().after(60).after(119)
    assert "NodeNotResponding" not in told.tells()
    assert _warnings(told.after(1)) == {"NodeNotResponding": "Node n1 has not confirmed the kill of name-of-w1"}
    told = Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING).frozen().committed().after(60).after(120)
    assert _warnings(told) == {"NodeNotResponding": "Node n1 has not confirmed the thaw of name-of-w1"}
    told = Told().report(Starting(workload("w2"), MD, POLICY)).tell(SnapshotFound("restore.w2")).after(90).after(119)
    assert "NodeNotResponding" not in told.tells()
    assert _warnings(told.after(1)) == {"NodeNotResponding": "Node n1 has not confirmed the start of name-of-w2"}
    assert told.tell(StartedCold("restore.w2")).tells() == []


def test_a_node_that_does_not_confirm_that_a_pod_runs_on_fails_its_checkpoint() -> None:
    told = Told().running().preempt().frozen().after(60).after(120)
    text = _warnings(told)["CheckpointFailed"]
    assert text.startswith("Node n1 has not confirmed that name-of-w1 runs on: ")


def test_an_attempt_that_follows_is_announced_by_the_failure_before() -> None:
    assert _warnings(Told().running().preempt().frozen().failed(retryable=True)) == {
        "CheckpointFailed": "Checkpoint md/0 of name-of-w1 failed: the store is down; it is tried again"
    }
