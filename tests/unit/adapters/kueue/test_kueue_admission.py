"""What our AdmissionCheck says of a Workload, and of itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.kube.builtin_kinds import Condition, Metadata
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import derived_id
from cedana_sched_kueue.admission_check_decisions import (
    Answer,
    build_active_condition,
    build_pending_status,
    build_ready_status,
    decide_check_answer,
    describe_snapshots,
    is_ours,
    pending_checks,
    policy_of,
)
from cedana_sched_kueue.managed_kinds import ManagedKinds
from cedana_sched_kueue.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    AdmissionCheckStatus,
    CheckState,
    ParametersReference,
    PodSet,
    Workload,
)
from tests.unit.adapters.kueue.kueue_builders import conditions, owner, template, workload

_NOW = datetime(2026, 11, 21, 15, 0, 0, tzinfo=UTC)
_DERIVED = "md-1a2b3c4d"
_OWN = {names.ID: _DERIVED, names.DERIVED_ID: "true"}


def _check(parameters: ParametersReference | None = None, held: tuple[Condition, ...] = ()) -> AdmissionCheck:
    spec = AdmissionCheckSpec(names.ADMISSION_CHECK_CONTROLLER, parameters)
    return AdmissionCheck(Metadata(name="save", generation=3), spec, AdmissionCheckStatus(held))


def _policy(name: str, kind: str = "CheckpointPolicy", group: str = names.GROUP) -> ParametersReference:
    return ParametersReference(group, kind, name)


def answer(asked: Workload, policy: str | None, saved: tuple[str, ...] = ()) -> Answer:
    """What we say of it where these ids have snapshots."""
    return decide_check_answer(asked, policy, ManagedKinds(), lambda one: one in saved)


def updates_of(found: Answer) -> dict[str, str]:
    """The annotations of all updates."""
    return {key: value for update in found.pod_set_updates for key, value in update["annotations"].items()}


def test_pods_without_a_name_get_one_and_the_policy() -> None:
    found = answer(workload(), "hourly")
    of_queue = {names.QUEUE_POLICY: "hourly", names.POLICY: "hourly"}
    assert found.pod_set_updates == ({"name": "main", "annotations": {**_OWN, **of_queue}},)
    assert found.ids == (_DERIVED,)


@pytest.mark.parametrize(
    ("pods", "updates", "ids"),
    [
        (template(CEDANA_CHECKPOINT="mine"), (), ("mine",)),
        (template(CEDANA_CHECKPOINT=""), (), ()),  # its value comes from elsewhere
        (template({names.ID: "mine"}), (), ("mine",)),
        (template({names.POLICY: "theirs"}), (_OWN,), (_DERIVED,)),
        (template({names.DERIVED_ID: "false"}), ({names.ID: _DERIVED},), (_DERIVED,)),
        (template(), (_OWN,), (_DERIVED,)),
    ],
)
def test_a_key_that_the_template_has_is_never_written(pods: object, updates: tuple[object], ids: tuple[str]) -> None:
    """Kueue would end the Workload for good."""
    found = answer(workload(pod_sets=(PodSet(template=pods),)), None)  # type: ignore[arg-type]  # parametrized
    assert tuple(update["annotations"] for update in found.pod_set_updates) == updates
    assert found.ids == ids


def test_the_queues_policy_is_said_beside_the_templates_own() -> None:
    """The pod webhook decides between them."""
    theirs = PodSet(template=template({names.POLICY: "theirs", names.ID: "mine"}))
    updates = answer(workload(pod_sets=(theirs,)), "hourly").pod_set_updates
    assert updates == ({"name": "main", "annotations": {names.QUEUE_POLICY: "hourly"}},)


@pytest.mark.parametrize("policy", ["hourly", "weekly", None])
def test_kueue_is_never_given_what_it_would_end_a_workload_for(policy: str | None) -> None:
    """Kueue makes a Workload anew from a Job that has our updates of its last admission in its template."""
    first = updates_of(answer(workload(), "hourly"))
    again = answer(workload(pod_sets=(PodSet(template=template(first)),)), policy, saved=(_DERIVED,))
    assert again.obstacle is None
    assert again.ids == (_DERIVED,)
    assert updates_of(again).items() <= first.items()


@pytest.mark.parametrize(
    ("annotations", "env"),
    [
        ({}, {}),
        ({names.ID: "mine"}, {}),
        ({names.ID: "mine", names.DERIVED_ID: "true"}, {}),
        ({names.ID: _DERIVED}, {}),
        (_OWN, {"CEDANA_CHECKPOINT": "mine"}),
    ],
)
def test_a_queues_policy_that_its_author_wrote_does_not_count(annotations: dict[str, str], env: dict[str, str]) -> None:
    for written in ("lax", ""):
        pods = template({**annotations, names.QUEUE_POLICY: written}, **env)
        found = answer(workload(pod_sets=(PodSet(template=pods),)), "hourly", saved=("mine", _DERIVED))
        assert (found.pod_set_updates, found.ids) == ((), ())
        assert found.obstacle == (
            f"spec.podSets[main].template.metadata.annotations[{names.QUEUE_POLICY}]: '{written}' is not the policy of"
            " the queue's AdmissionCheck, 'hourly': with both, Kueue would end the Workload (take it out of the Job's"
            " template and delete this Workload, which Kueue makes anew)"
        )


def test_a_job_that_was_never_saved_shows_no_earlier_admission() -> None:
    """Its author knows its uid, and may write all that we would, before it starts for the first time."""
    forged = template({**_OWN, names.QUEUE_POLICY: "lax", names.POLICY: "lax"})
    assert "'lax' is not the policy" in (answer(workload(pod_sets=(PodSet(template=forged),)), "hourly").obstacle or "")


def test_why_a_workload_waits_is_said_once() -> None:
    pending = workload(checks=(CheckState("save", message="Reset to Pending after eviction"),))
    body = build_pending_status(pending, "save", "not yet", _NOW)
    assert body is not None
    (said,) = body["status"]["admissionChecks"]
    assert (said["state"], said["message"], said["podSetUpdates"]) == ("Pending", "not yet", [])
    assert (
        build_pending_status(workload(checks=(CheckState("save", message="not yet"),)), "save", "not yet", _NOW) is None
    )


def test_a_long_name_of_a_policy_is_not_said_again_and_again() -> None:
    pods = template({names.QUEUE_POLICY: "\n" * 100_000})
    why = answer(workload(pod_sets=(PodSet("p" * 300, pods),)), "hourly").obstacle
    assert why is not None
    assert build_pending_status(workload(checks=(CheckState("save", message=why),)), "save", why, _NOW) is None


@pytest.mark.parametrize(
    "kind",
    [owner(kind="JobSet", api_version="jobset.x-k8s.io/v1alpha2"), owner(kind="Foo", api_version="x.example/v1")],
)
def test_a_kind_that_is_not_followed_passes_without_updates_and_says_so(kind: object) -> None:
    found = answer(workload(owned_by=kind), "hourly")  # type: ignore[arg-type]  # parametrized
    assert found.pod_set_updates == ()
    assert "does not protect a" in (found.note or "")
    assert "kueue.kinds" in (found.note or "")


def test_a_job_that_runs_already_is_left_as_it_is() -> None:
    """The check is new to its queue; the updates would say nothing true about its pods."""
    found = answer(workload(conditions("QuotaReserved", "Admitted")), "hourly")
    assert (found.pod_set_updates, found.note) == ((), "runs already, and is saved from its next admission on")


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?", fullmatch=True), st.uuids())
def test_a_derived_id_is_an_id_whatever_the_jobs_name(name: str, uid: object) -> None:
    derived = derived_id(name, str(uid))
    Identity("bio", derived)
    assert derived.endswith(str(uid)[:8])


def test_an_id_says_which_incarnation_of_the_job() -> None:
    assert derived_id("md", "1a2b3c4d-1") != derived_id("md", "2a2b3c4d-1")


def test_a_workload_waits_for_us_only_when_it_has_its_quota() -> None:
    checks = (CheckState("save"), CheckState("other"), CheckState("done", "Ready"))
    ours = ("save", "done", "absent")
    assert pending_checks(workload(conditions("QuotaReserved"), checks=checks), ours) == ("save",)
    assert pending_checks(workload(checks=checks), ours) == ()
    evicted = workload(conditions("QuotaReserved", "Evicted"), checks=checks)
    assert pending_checks(evicted, ours) == (), "it keeps its quota while its Job is held"
    assert pending_checks(workload(conditions("QuotaReserved", "Finished"), checks=checks), ours) == ()


def test_what_is_left_from_the_last_admission_is_overwritten() -> None:
    """Kueue leaves our updates in place when it resets the check, so none must be said as none."""
    body = build_ready_status(workload(), "save", answer(workload(pod_sets=()), None), "as it is", _NOW)
    assert body["metadata"] == {"name": "job-md-12345", "namespace": "bio", "resourceVersion": "7"}
    assert body["status"]["admissionChecks"] == [
        {
            "name": "save",
            "state": "Ready",
            "lastTransitionTime": "2026-11-21T15:00:00Z",
            "message": "as it is",
            "podSetUpdates": [],
        }
    ]


def test_a_check_is_active_with_its_policy_or_without_one() -> None:
    for check in (_check(), _check(_policy("hourly"))):
        body = build_active_condition(check, ["hourly"], _NOW)
        assert body is not None
        (condition,) = body["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("Active", "True")
        assert condition["observedGeneration"] == 3
        assert condition["lastTransitionTime"] == "2026-11-21T15:00:00Z"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (_policy("hourly"), "there is no CheckpointPolicy 'hourly'"),
        (_policy("hourly", kind="ConfigMap"), "parameters are a ConfigMap"),
        (_policy("hourly", group="other.example.com"), "name a CheckpointPolicy.sched.cedana.ai"),
    ],
)
def test_a_check_whose_parameters_name_no_policy_says_why_it_is_not_active(
    parameters: ParametersReference, words: str
) -> None:
    body = build_active_condition(_check(parameters), ["daily"], _NOW)
    assert body is not None
    (condition,) = body["status"]["conditions"]
    assert condition["status"] == "False"
    assert words in condition["message"]
    assert policy_of(_check(parameters), ["daily"]) is None


def test_a_condition_that_says_it_already_is_not_written_again() -> None:
    body = build_active_condition(_check(), [], _NOW)
    assert body is not None
    (written,) = body["status"]["conditions"]
    as_read = Condition("Active", "True", written["reason"], written["message"], "2026-11-01T00:00:00Z")
    assert build_active_condition(_check(held=(as_read,)), [], _NOW) is None
    other = Condition("Active", "True", "Old", "older words", "2026-11-01T00:00:00Z")
    again = build_active_condition(_check(held=(other,)), [], _NOW)
    assert again is not None
    assert again["status"]["conditions"][0]["lastTransitionTime"] == "2026-11-01T00:00:00Z"


def test_only_checks_of_our_controller_are_ours() -> None:
    assert is_ours(_check())
    assert not is_ours(AdmissionCheck(Metadata(name="save"), AdmissionCheckSpec("kueue.x-k8s.io/multikueue")))
    assert not is_ours(None)


def _snapshot(generation: int, index: int = 0) -> SnapshotRef:
    return SnapshotRef(Identity("bio", "md", index), generation)


def test_people_read_what_it_continues_from() -> None:
    assert describe_snapshots([]) == "starts from the beginning"
    assert describe_snapshots(_snapshot(generation) for generation in (3, 12, 4)) == "continues from md/0@12"
    replicas = [_snapshot(generation, index) for generation in (1, 2) for index in (2, 0, 1)]
    assert describe_snapshots(replicas) == "continues from md/0@2 and 2 more"
