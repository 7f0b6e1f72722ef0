"""From what the mirrors hold to what the coordinator hears: one signal for each eviction, and its end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.kube.builtin_kinds import Condition
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.preemption import HeldObject, Signal
from cedana_sched_kueue.managed_objects import ManagedObject
from cedana_sched_kueue.objects import Workload
from cedana_sched_kueue.preemptions import KueueReport
from tests.unit.adapters.kueue.kueue_builders import (
    EVICTED_AT,
    JOB_UID,
    NAMESPACE,
    PREEMPTOR_UID,
    World,
    admitted,
    changed,
    job,
    owner,
    pod,
    preempted,
    template,
    workload,
)

_ENDED = Condition("Complete", "True")


@pytest.fixture
def world() -> World:
    """A Job of two running pods."""
    made = World()
    made.put(job(), admitted(), pod(0), pod(1))
    assert made.review() == ()
    return made


def _signal(reports: tuple[KueueReport, ...]) -> Signal:
    (report,) = reports
    assert isinstance(report, Preempted)
    return report.signal


def test_a_preemption_becomes_one_signal_of_all_running_pods(world: World) -> None:
    going = changed(pod(4), deletion_timestamp="2026-11-24T00:00:00Z")
    world.put(preempted(), pod(2, phase="Pending"), pod(3, phase="Succeeded"), going)

    signal = _signal(world.review())

    assert signal.adapter == "kueue"
    assert signal.reason == "InCohortReclamation"
    assert signal.observed_at == world.now
    assert signal.held == HeldObject("batch/v1", "Job", NAMESPACE, "md", JOB_UID)
    assert [victim.identity for victim in signal.victims] == [Identity(NAMESPACE, "md", index) for index in (0, 1)]
    assert {victim.gang for victim in signal.victims} == {"workload-1"}, "all members or none"
    assert {victim.workload.node for victim in signal.victims} == {"node-1"}
    assert signal.victims[0].started_at == 1_795_269_600


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"owner_references": (owner(kind="Nothing", api_version="x.example/v1"),)}, id="that no Job owns"),
        pytest.param({"owner_references": (owner(name="another"),)}, id="of another name"),
        pytest.param({"namespace": "other"}, id="of another namespace"),
        pytest.param({}, id="beside Kueue's"),
        pytest.param({"creation_timestamp": "", "deletion_timestamp": EVICTED_AT}, id="that will not go"),
    ],
)
def test_an_eviction_in_a_workload_that_is_not_kueues_record_of_the_job_begins_nothing(
    world: World, forged: dict[str, Any]
) -> None:
    """Who may write Workloads can have one name any Job, and Kueue tells its victims the uids of others' Jobs."""
    second = {"name": "a", "uid": "workload-2", "creation_timestamp": "2026-11-21T14:00:00Z"}
    world.put(changed(preempted(), **{**second, **forged}))
    assert world.review() == ()
    world.put(preempted())
    assert _signal(world.review()).victims


def test_a_workload_that_has_replaced_a_finished_one_is_kueues_record(world: World) -> None:
    """As that of an elastic Job, whose Workloads Kueue replaces while it runs."""
    world.put(workload((Condition("Finished", "True"),)))
    world.put(changed(preempted(), name="job-md-2", uid="workload-2", creation_timestamp=EVICTED_AT))
    assert _signal(world.review()).victims


def test_pod_of_another_namespace_is_no_pod_of_the_job_whatever_it_says(world: World) -> None:
    """It would be saved with them, all members or none, and Kueue tells its victims the uids of others' Jobs."""
    world.put(changed(pod(2), namespace="other", name="md-2"), preempted())

    signal = _signal(world.review())

    assert [victim.workload.name for victim in signal.victims] == ["md-0", "md-1"]


def test_the_preemptor_is_named_and_binds_its_victims_together(world: World) -> None:
    world.put(preempted())
    unknown = _signal(world.review())
    assert (unknown.preemptor, unknown.release_group) == (PREEMPTOR_UID, PREEMPTOR_UID)

    world.restart()
    world.put(workload(name="job-train-1", uid=PREEMPTOR_UID, owned_by=owner("job-9", "train")))
    known = _signal(world.review())
    assert (known.preemptor, known.release_group) == (f"{NAMESPACE}/job-train-1", PREEMPTOR_UID)


def test_a_preemptor_of_another_namespace_is_not_named_to_its_victims(world: World) -> None:
    elsewhere = workload(name="job-secret-1", uid=PREEMPTOR_UID, owned_by=owner("job-9", "secret"))
    world.put(preempted())
    world.put(msgspec.structs.replace(elsewhere, metadata=msgspec.structs.replace(elsewhere.metadata, namespace="ml")))
    assert _signal(world.review()).preemptor == PREEMPTOR_UID


@pytest.mark.parametrize(
    "message", ["", "Preempted to accommodate a workload (UID: UNKNOWN, JobUID: UNKNOWN) due to x"]
)
def test_a_preemptor_that_kueue_does_not_name_is_not_guessed(world: World, message: str) -> None:
    world.put(preempted(message=message))
    signal = _signal(world.review())
    assert (signal.preemptor, signal.release_group) == (None, None)


@pytest.mark.parametrize(
    "reason", ["PodsReadyTimeout", "ClusterQueueStopped", "LocalQueueStopped", "Deactivated", "NodeFailures"]
)
def test_every_other_eviction_is_a_signal_in_kueues_words(world: World, reason: str) -> None:
    stale = Condition("Preempted", "True", "InClusterQueue", "(UID: somebody, JobUID: else)", EVICTED_AT)
    world.put(workload((Condition("Evicted", "True", reason, "", EVICTED_AT), stale)))

    signal = _signal(world.review())

    assert (signal.reason, signal.preemptor, signal.release_group) == (reason, None, None)


def test_pods_keep_their_own_policies(world: World) -> None:
    world.put(preempted(), pod(0, **{names.POLICY: "30"}))
    first, second = _signal(world.review()).victims
    assert first.policy.deadline_seconds == 30
    assert second.policy.deadline_seconds == 600


def test_a_pod_with_a_broken_identity_is_left_out(world: World) -> None:
    world.put(preempted(), pod(0, **{names.INDEX: "first"}), pod(1, **{names.ID: "not/ours"}), pod(2))
    assert [victim.identity.index for victim in _signal(world.review()).victims] == [2]


def test_a_restart_repeats_what_is_pending_with_the_same_uid(world: World) -> None:
    world.put(preempted())
    before = _signal(world.review())
    world.restart()
    world.now += 60
    after = _signal(world.review())
    assert msgspec.structs.replace(after, observed_at=before.observed_at) == before
    assert world.preemptions.pending_reports() == (Preempted(after),)


def test_another_eviction_of_the_same_job_is_another_signal(world: World) -> None:
    world.put(preempted())
    first = _signal(world.review())
    world.put(preempted(since="2026-11-21T16:00:00Z"))

    cancelled, begun = world.review()

    assert isinstance(cancelled, PreemptionCancelled)
    assert cancelled.signal_uid == first.uid
    assert _signal((begun,)).uid != first.uid


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ((admitted(),), "no longer evicts Workload job-md-12345"),
        ((workload((*preempted().status.conditions, Condition("Finished", "True"))),), "no longer evicts"),
        ((job(conditions=(_ENDED,)),), "its Job has ended"),
        ((changed(job(), deletion_timestamp="now"),), "its Job has ended"),
    ],
)
def test_a_preemption_that_is_called_off_is_taken_back(
    world: World, now: tuple[ManagedObject | Workload, ...], why: str
) -> None:
    world.put(preempted())
    signal = _signal(world.review())
    world.put(*now)

    (report,) = world.review()

    assert isinstance(report, PreemptionCancelled)
    assert report.signal_uid == signal.uid
    assert why in report.why
    assert world.review() == ()
    assert world.preemptions.pending_reports() == ()


def test_a_deleted_job_takes_its_preemption_back(world: World) -> None:
    world.put(preempted())
    world.review()
    world.jobs.drop(job())
    (report,) = world.review()
    assert report == PreemptionCancelled(f"{JOB_UID}@{EVICTED_AT}", "its Job was deleted")


def test_a_deleted_workload_does_not_save_its_job(world: World) -> None:
    """Kueue stops a Job whose Workload is missing as well, so the hold stands."""
    world.put(preempted())
    signal = _signal(world.review())
    world.workloads.drop(preempted())
    assert world.review() == ()
    assert world.preemptions.pending_reports() == (Preempted(signal),)


def test_an_eviction_that_went_through_is_over_without_a_word(world: World) -> None:
    world.put(preempted())
    world.review()
    world.put(job(suspend=True))
    assert world.review() == ()
    assert world.preemptions.pending_reports() == ()

    world.put(job(), pod(5))  # admitted again, and the Workload's news come later
    assert world.review() == ()
    world.put(admitted())
    assert world.review() == ()


def test_a_job_that_is_stopped_already_is_no_preemption(world: World) -> None:
    world.put(job(suspend=True), preempted())
    assert world.review() == ()
    world.restart()
    assert world.review() == ()


def test_a_released_preemption_is_not_repeated(world: World) -> None:
    world.put(preempted())
    signal = _signal(world.review())
    world.preemptions.on_released(signal.uid)
    assert world.review() == ()
    assert world.preemptions.pending_reports() == ()

    world.put(job(annotations={names.RELEASED_HOLD: hold_name(signal.uid)}))
    world.restart()
    assert world.review() == ()
    world.put(admitted())
    assert world.review() == (), "what is released is not taken back"


def test_an_eviction_that_saves_nothing_is_let_go_at_once(world: World) -> None:
    for index in (0, 1):
        world.put(pod(index, phase="Pending"))
    world.put(preempted())

    assert world.review() == ()

    name = hold_name(f"{JOB_UID}@{EVICTED_AT}")
    assert world.preemptions.annotation_correction(JOB_UID) == (True, name)
    world.put(job(annotations={names.RELEASED_HOLD: name}), pod(0))
    assert world.preemptions.annotation_correction(JOB_UID)[0] is False
    assert world.review() == (), "it was let go, and stays so"


def test_a_job_that_the_webhook_never_holds_is_not_written_to(world: World) -> None:
    world.put(job(pods=template()), preempted(), pod(0, phase="Pending"), pod(1, phase="Pending"))
    world.review()
    assert world.preemptions.annotation_correction(JOB_UID)[0] is False


def test_a_release_is_removed_when_the_job_runs_again_and_not_before(world: World) -> None:
    world.put(preempted())
    name = hold_name(_signal(world.review()).uid)
    world.preemptions.on_released(f"{JOB_UID}@{EVICTED_AT}")
    released = job(annotations={names.RELEASED_HOLD: name})
    world.put(released)
    assert world.preemptions.annotation_correction(JOB_UID)[0] is False, "Kueue has not suspended it yet"

    world.put(job(suspend=True, annotations={names.RELEASED_HOLD: name}))
    assert world.preemptions.annotation_correction(JOB_UID)[0] is False
    world.put(admitted(), released)
    assert world.preemptions.annotation_correction(JOB_UID) == (True, None)


def test_a_release_of_an_earlier_hold_does_not_let_the_next_one_go(world: World) -> None:
    world.put(job(annotations={names.RELEASED_HOLD: "hold-of-long-ago"}), preempted())
    world.review()
    assert world.preemptions.annotation_correction(JOB_UID) == (True, None)


_STATES = st.sampled_from([
    job(), job(suspend=True), job(conditions=(_ENDED,)), job(annotations={names.RELEASED_HOLD: "other"}),
    preempted(), preempted(since="2026-11-21T16:00:00Z"), admitted(),
    pod(0), pod(0, phase="Pending"), pod(1), pod(1, phase="Succeeded"),
])  # fmt: skip


@given(st.lists(st.tuples(_STATES, st.integers(1, 3)), max_size=12))
def test_repeating_what_is_known_changes_nothing(history: list[tuple[ManagedObject | Workload, int]]) -> None:
    """However often each state is told, the reports are the same, and every one that is begun ends at most once."""
    once, often = World(), World()
    told: list[KueueReport] = []
    for state, times in history:
        once.put(state)
        expected = once.review()
        got: list[KueueReport] = []
        for _ in range(times):
            often.put(state)
            got += often.review()
        assert tuple(got) == expected
        told += expected
    begun = [report.signal.uid for report in told if isinstance(report, Preempted)]
    ended = [report.signal_uid for report in told if isinstance(report, PreemptionCancelled)]
    pending = [report.signal.uid for report in once.preemptions.pending_reports()]
    for uid in ended:
        assert begun.count(uid) >= ended.count(uid)
    assert set(pending) <= set(begun)
    assert len(pending) <= 1
