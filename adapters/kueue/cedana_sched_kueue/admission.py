"""What our AdmissionCheck says, as plain values: of itself, and of the Workloads that ask it. Without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import LONGEST_MESSAGE, Condition
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, JOBS
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.naming import derived_id
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
from cedana_sched_kueue.templates import annotations_of, is_named, named_id

MESSAGE_LIMIT = 32_768
_SHOWN = 253
"""Characters of a policy's name: as many as one can have."""


class Answer(msgspec.Struct, frozen=True):
    """What a Workload's pods get, and what people read. `ids`: whose snapshots it continues from."""

    pod_set_updates: tuple[Object, ...] = ()
    ids: tuple[str, ...] = ()
    note: str | None = None
    """Said instead of what it continues from."""
    obstacle: str | None = None
    """Why it waits."""


def is_ours(check: AdmissionCheck | None) -> bool:
    return check is not None and check.spec.controller_name == names.ADMISSION_CHECK_CONTROLLER


def waits(workload: Workload) -> bool:
    """Whether it has its quota and nothing but checks keep it from starting.

    An evicted Workload keeps its quota until its Job has stopped, and its checks are Pending already.
    """
    return (
        workload.condition(QUOTA_RESERVED) is not None
        and workload.condition(EVICTED) is None
        and workload.condition(FINISHED) is None
        and workload.metadata.deletion_timestamp is None
    )


def pending_checks(workload: Workload, ours: Iterable[str]) -> tuple[str, ...]:
    """Names of those of our checks that it waits for."""
    known = set(ours)
    states = workload.status.admission_checks if waits(workload) else ()
    return tuple(sorted(one.name for one in states if one.name in known and one.state == PENDING))


def answer_of(workload: Workload, policy: str | None, is_saved: Callable[[str], bool]) -> Answer:
    """Identities for all pods that have none, the queue's policy, and that one where the template names none.

    A key that a template has already is left alone: Kueue ends a Workload for good when an update changes one. Where
    it says another policy of the queue than the check, the Workload waits, unless that one is of an earlier admission.

    Args:
        workload: waits for the check.
        policy: the check's; None where it names none.
        is_saved: whether there are snapshots of an id in its namespace.
    """
    owner = workload.metadata.owner
    if owner is None or (owner.api_version, owner.kind) != (JOBS.group_version, JOBS.kind):
        kind = owner.kind if owner else "Workload without an owner"
        return Answer(note=f"starts as it would without this check, which protects Jobs only, not a {kind}")
    if workload.condition(ADMITTED) is not None:  # the check is new to its queue
        return Answer(note="runs already, and is saved from its next admission on")
    derived = derived_id(owner.name, owner.uid)
    updates: list[Object] = []
    ids: list[str] = []
    for pod_set in workload.spec.pod_sets:
        template, annotations = pod_set.template, {}
        other = _other_policy(template, policy)
        if other is not None and not (_is_named_by_us(template, derived) and is_saved(derived)):
            return Answer(obstacle=_obstacle(pod_set, other, policy))
        if not is_named(template):
            annotations[names.ID] = derived
            if names.DERIVED_ID not in annotations_of(template):
                annotations[names.DERIVED_ID] = "true"
        if other is None and policy is not None:
            annotations[names.QUEUE_POLICY] = policy
            if names.POLICY not in annotations_of(template):
                annotations[names.POLICY] = policy
        if annotations:
            updates.append({"name": pod_set.name, "annotations": annotations})
        ids += [one for one in (annotations.get(names.ID, named_id(template)),) if one]
    return Answer(tuple(updates), tuple(ids))


def _other_policy(template: PodTemplate, policy: str | None) -> str | None:
    """What a template says of its queue's policy where its check says another one."""
    written = annotations_of(template).get(names.QUEUE_POLICY)
    return None if policy is None or written == policy else written


def _is_named_by_us(template: PodTemplate, derived: str) -> bool:
    """Whether it says what our updates say; its author can write the same, but no snapshot of that id."""
    return annotations_of(template).get(names.DERIVED_ID) == "true" and named_id(template) == derived


def _obstacle(pod_set: PodSet, written: str, policy: str | None) -> str:
    return str(
        UsageError(
            f"spec.podSets[{pod_set.name}].template.metadata.annotations[{names.QUEUE_POLICY}]",
            written[:_SHOWN],
            f"is not the policy of the queue's AdmissionCheck, {policy!r}: with both, Kueue would end the Workload",
            remedy="take it out of the Job's template and delete this Workload, which Kueue makes anew",
        )
    )[:LONGEST_MESSAGE]


def waiting(workload: Workload, check: str, message: str, now: datetime) -> Object | None:
    """The Workload's status with this check still pending, as `ready` has it; None where it says so already."""
    if any((one.name, one.state, one.message) == (check, PENDING, message) for one in workload.status.admission_checks):
        return None
    return _status(workload, check, PENDING, Answer(), message, now)


def ready(workload: Workload, check: str, answer: Answer, message: str, now: datetime) -> Object:
    """The Workload's status with this check passed, for server-side apply.

    Updates of an earlier admission are still there, ours by field ownership: so they are named even when there are
    none. The version makes it fail when the Workload has changed: it may be evicted by now.
    """
    return _status(workload, check, READY, answer, message, now)


def _status(workload: Workload, check: str, state: str, answer: Answer, message: str, now: datetime) -> Object:
    metadata = workload.metadata
    said = {
        "name": check,
        "state": state,
        "lastTransitionTime": _seconds(now),
        "message": message[:MESSAGE_LIMIT],
        "podSetUpdates": list(answer.pod_set_updates),
    }
    versioned = {"name": metadata.name, "namespace": metadata.namespace, "resourceVersion": metadata.resource_version}
    return {"metadata": versioned, "status": {"admissionChecks": [said]}}


def parameters_problem(parameters: ParametersReference | None, policies: Iterable[str]) -> tuple[str, str] | None:
    """Why an AdmissionCheck cannot be used: one word and a sentence. None: it can."""
    if parameters is None:
        return None
    kind = CHECKPOINT_POLICIES.kind
    if (parameters.api_group, parameters.kind) != (names.GROUP, kind):
        written = f"{parameters.kind}.{parameters.api_group}"
        return "BadParametersRef", f"parameters are a {written}; name a {kind}.{names.GROUP}, or nothing"
    if parameters.name not in set(policies):
        return "BadParametersRef", f"there is no {kind} {parameters.name!r}; create it, or name another"
    return None


def active(check: AdmissionCheck, policies: Iterable[str], now: datetime) -> Object | None:
    """The condition `Active` as it should be, for server-side apply; None when it is so already."""
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
        "lastTransitionTime": since or _seconds(now),
    }
    versioned = {"name": check.metadata.name, "resourceVersion": check.metadata.resource_version}
    return {"metadata": versioned, "status": {"conditions": [condition]}}


def policy_of(check: AdmissionCheck, policies: Iterable[str]) -> str | None:
    """The policy that its pods get; without one, or with one that does not exist, the default's name is not needed."""
    parameters = check.spec.parameters
    return None if parameters is None or parameters_problem(parameters, policies) else parameters.name


def _seconds(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
