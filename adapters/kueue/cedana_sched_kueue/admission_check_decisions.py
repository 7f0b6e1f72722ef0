"""Decisions of our AdmissionCheck as plain values: its own state, that of Workloads, and messages. Without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from cedana_sched.kube.builtin_kinds import LONGEST_MESSAGE, Condition
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, JOBS, PODS
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import derived_id
from cedana_sched_kueue.managed_kinds import ManagedKinds, is_of_kind
from cedana_sched_kueue.objects import (
    ACTIVE,
    ADMITTED,
    EVICTED,
    FINISHED,
    PENDING,
    QUOTA_RESERVED,
    READY,
    AdmissionCheck,
    ParametersReference,
    PodSet,
    PodTemplate,
    Workload,
)
from cedana_sched_kueue.template_identity import annotations_of, has_user_id, user_chosen_checkpoint_id

MESSAGE_LIMIT = 32_768
CONTINUES_BY_ROLE = "each pod that has a snapshot continues from it; `kubectl get checkpoints` shows them"
"""Message for kinds whose pods have roles: their ids show at their creation only."""
PODS_NAME_THEIR_ID = (
    "starts as it would without this check: its pods are there already, and are protected if their template has the"
    f" annotation {names.ID}"
)
"""Message for pods that Kueue gates: an update would reach them after their creation."""
_SHOWN = 253
"""Characters; the maximum length of a policy's name."""


class Answer(msgspec.Struct, frozen=True):
    """Updates for a Workload's pods, and the message. `ids`: whose snapshots the Workload restores."""

    pod_set_updates: tuple[Object, ...] = ()
    ids: tuple[str, ...] = ()
    note: str | None = None
    """Message that replaces the one about snapshots."""
    obstacle: str | None = None
    """Why the Workload waits."""


def is_ours(check: AdmissionCheck | None) -> bool:
    return check is not None and check.spec.controller_name == names.ADMISSION_CHECK_CONTROLLER


def is_waiting_for_checks(workload: Workload) -> bool:
    """Whether it has a quota reservation and only checks block its start.

    An evicted Workload keeps its quota until its Job has stopped, and its checks are already Pending.
    """
    return (
        workload.find_true_condition(QUOTA_RESERVED) is not None
        and workload.find_true_condition(EVICTED) is None
        and workload.find_true_condition(FINISHED) is None
        and workload.metadata.deletion_timestamp is None
    )


def pending_checks(workload: Workload, ours: Iterable[str]) -> tuple[str, ...]:
    """Return the names of our checks that it waits for."""
    known = set(ours)
    states = workload.status.admission_checks if is_waiting_for_checks(workload) else ()
    return tuple(sorted(one.name for one in states if one.name in known and one.state == PENDING))


def decide_check_answer(
    workload: Workload, policy: str | None, kinds: ManagedKinds, is_saved: Callable[[str], bool]
) -> Answer:
    """Compute updates: identities for pods without one, the queue's policy, also as the pods' own if these name none.

    Existing keys of a template are kept: Kueue ends a Workload permanently if an update changes one. If the template
    has another queue policy than the check, the Workload waits, unless the template's value is from an earlier
    admission.

    Pods that Kueue itself gates are there before their Workload is admitted, and an update would reach them too late.

    Args:
        workload: waits for the check.
        policy: the check's; None if it names none.
        kinds: those whose objects Kueue suspends.
        is_saved: whether an id has snapshots in the Workload's namespace.
    """
    owner = workload.metadata.controller_reference
    if owner is None or is_of_kind(owner, PODS):
        return Answer(note=PODS_NAME_THEIR_ID)
    if kinds.resource_of(owner) is None:
        remedy = "name the kind in the chart's value kueue.kinds, if Kueue suspends its objects"
        return Answer(note=f"starts as it would without this check, which does not protect a {owner.kind}: {remedy}")
    if workload.find_true_condition(ADMITTED) is not None:  # the check is new to its queue
        return Answer(note="runs already, and is saved from its next admission on")
    derived, is_job = derived_id(owner.name, owner.uid), is_of_kind(owner, JOBS)
    updates: list[Object] = []
    ids: list[str] = []
    for pod_set in workload.spec.pod_sets:
        template, annotations = pod_set.template, {}
        other = _conflicting_policy(template, policy)
        if other is not None and not (_is_named_by_us(template, derived, is_job=is_job) and is_saved(derived)):
            return Answer(obstacle=_policy_conflict_message(pod_set, other, policy))
        if not has_user_id(template):
            annotations[names.ID] = derived
            if is_job and names.DERIVED_ID not in annotations_of(template):
                annotations[names.DERIVED_ID] = "true"
        if other is None and policy is not None:
            annotations[names.QUEUE_POLICY] = policy
            if names.POLICY not in annotations_of(template):
                annotations[names.POLICY] = policy
        if annotations:
            updates.append({"name": pod_set.name, "annotations": annotations})
        ids += [one for one in (annotations.get(names.ID, user_chosen_checkpoint_id(template)),) if one]
    return Answer(tuple(updates), tuple(ids), note=None if is_job else CONTINUES_BY_ROLE)


def _conflicting_policy(template: PodTemplate, policy: str | None) -> str | None:
    """Return the template's queue policy if it conflicts with the check's."""
    written = annotations_of(template).get(names.QUEUE_POLICY)
    return None if policy is None or written == policy else written


def _is_named_by_us(template: PodTemplate, derived: str, *, is_job: bool) -> bool:
    """Whether the template has our updates' values; its author can write these, but create no snapshots of that id."""
    is_marked = not is_job or annotations_of(template).get(names.DERIVED_ID) == "true"
    return is_marked and user_chosen_checkpoint_id(template) == derived


def _policy_conflict_message(pod_set: PodSet, written: str, policy: str | None) -> str:
    return str(
        UsageError(
            f"spec.podSets[{pod_set.name}].template.metadata.annotations[{names.QUEUE_POLICY}]",
            written[:_SHOWN],
            f"is not the policy of the queue's AdmissionCheck, {policy!r}: with both, Kueue would end the Workload",
            remedy="take it out of the Job's template and delete this Workload, which Kueue makes anew",
        )
    )[:LONGEST_MESSAGE]


def describe_snapshots(snapshots: Iterable[SnapshotRef]) -> str:
    """Describe the newest snapshot of each replica: the first one by name, the others by count. For users only."""
    newest: dict[Identity, SnapshotRef] = {}
    for one in snapshots:
        newest[one.identity] = max(one, newest.get(one.identity, one))
    if not newest:
        return "starts from the beginning"
    first, *others = (newest[identity] for identity in sorted(newest))
    more = f" and {len(others)} more" if others else ""
    return f"continues from {first.identity.id}/{first.identity.index}@{first.generation}{more}"


def build_pending_status(workload: Workload, check: str, message: str, now: datetime) -> Object | None:
    """Return the status with this check still pending, like `build_ready_status`; None if it is unchanged."""
    if any((one.name, one.state, one.message) == (check, PENDING, message) for one in workload.status.admission_checks):
        return None
    return _build_workload_status(workload, check, PENDING, Answer(), message, now)


def build_ready_status(workload: Workload, check: str, answer: Answer, message: str, now: datetime) -> Object:
    """Return the Workload's status with this check passed, for server-side apply.

    Updates of an earlier admission are still there, owned by our field manager: so the list is written even if empty.
    The resourceVersion makes the apply fail if the Workload has changed: it may be evicted by now.
    """
    return _build_workload_status(workload, check, READY, answer, message, now)


def _build_workload_status(
    workload: Workload, check: str, state: str, answer: Answer, message: str, now: datetime
) -> Object:
    metadata = workload.metadata
    decided = {
        "name": check,
        "state": state,
        "lastTransitionTime": _format_time(now),
        "message": message[:MESSAGE_LIMIT],
        "podSetUpdates": list(answer.pod_set_updates),
    }
    versioned = {"name": metadata.name, "namespace": metadata.namespace, "resourceVersion": metadata.resource_version}
    return {"metadata": versioned, "status": {"admissionChecks": [decided]}}


def parameters_problem(parameters: ParametersReference | None, policies: Iterable[str]) -> tuple[str, str] | None:
    """Return why an AdmissionCheck cannot be used, as reason and message; None if it can."""
    if parameters is None:
        return None
    kind = CHECKPOINT_POLICIES.kind
    if (parameters.api_group, parameters.kind) != (names.GROUP, kind):
        written = f"{parameters.kind}.{parameters.api_group}"
        return "BadParametersRef", f"parameters are a {written}; name a {kind}.{names.GROUP}, or nothing"
    if parameters.name not in set(policies):
        return "BadParametersRef", f"there is no {kind} {parameters.name!r}; create it, or name another"
    return None


def build_active_condition(check: AdmissionCheck, policies: Iterable[str], now: datetime) -> Object | None:
    """Return the desired condition `Active`, for server-side apply; None if it is up to date."""
    problem = parameters_problem(check.spec.parameters, policies)
    reason, message = problem or ("Active", "Workloads of this check's queues are saved when they are preempted")
    status = "False" if problem else "True"
    before = next((one for one in check.status.conditions if one.type == ACTIVE), Condition(ACTIVE, "Unknown"))
    if (before.status, before.reason, before.message) == (status, reason, message):
        return None
    since = before.last_transition_time if before.status == status else None
    condition = {
        "type": ACTIVE,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": check.metadata.generation,
        "lastTransitionTime": since or _format_time(now),
    }
    versioned = {"name": check.metadata.name, "resourceVersion": check.metadata.resource_version}
    return {"metadata": versioned, "status": {"conditions": [condition]}}


def policy_of(check: AdmissionCheck, policies: Iterable[str]) -> str | None:
    """Return the policy for its pods; None without an existing one: `default` then applies by itself."""
    parameters = check.spec.parameters
    return None if parameters is None or parameters_problem(parameters, policies) else parameters.name


def _format_time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
