"""Policies of vcjobs that turn a preemption into a loss: detection, and rewriting on request. Pure functions.

Volcano's job controller handles a preemption as follows (1.14.1, pkg/controllers/job; all of it observed):

* Each victim's pod ends first, while terminating: `PodFailed` with its exit code, 137 if we killed it frozen and saved,
  143 if it obeyed SIGTERM unsaved; or, if it exits with 0 and is the last of its task, `TaskCompleted`.
* A gang that falls below minAvailable is `Unknown` at once, before any pod has ended.
* `PodEvicted` follows when the pod's object is gone.
* Without a policy for an event, the pod is recreated under its name, and nothing is counted: a saved workload needs
  that. A task's policies precede its job's; of each list the first match applies.
* Every restart by a policy counts towards maxRetry, at which the job is Failed and its pods are deleted.

`TaskFailed` counts restarts of containers in their pods, which a preemption does not cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

Policy = Mapping[str, Any]
"""`LifecyclePolicy`: `event` or `events` or `exitCode`, `action`, `timeout`."""

EVICTED_EXIT_CODES: Final = (137, 143)
"""Exit codes of a container killed after it was frozen and saved, and of one that obeyed SIGTERM."""
MANY_RETRIES: Final = 1000
DEFAULT_RETRIES: Final = 3
"""Default that Volcano's own webhook writes if maxRetry is 0 or absent."""
NO_ACTION: Final = "SyncJob"
"""The controller's action without a matching policy. Volcano's webhook allows it only in policies of exit codes."""

_ENDS: Final = {
    "TerminateJob": "ends the job for good",
    "AbortJob": "stops the job",
    "CompleteJob": "counts the job as complete",
}
_RESTARTS: Final = {
    "RestartJob": "restarts all pods of the job",
    "RestartTask": "restarts all pods of the task",
    "RestartPartition": "restarts all pods of the partition",
    "RestartPod": "restarts the pod",
}
_COSTS: Final = _ENDS | _RESTARTS
_EVENTS: Final = (
    "PodPending", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated",
)  # fmt: skip
"""All events of policies; `*` means all."""
_EVICTION_EVENTS: Final = frozenset({"PodEvicted", "Unknown"})
"""What an eviction causes, and the end of a program does not."""
_MOMENTS: Final = {
    "PodFailed": "when an evicted pod ends",
    "PodEvicted": "when an evicted pod is gone",
    "Unknown": "as soon as an eviction breaks the gang",
    "TaskCompleted": "where a task's last pod is evicted unsaved and exits with 0 on SIGTERM",
    "PodPending": "where a preempted pod waits longer for its place",
}


class Loss(msgspec.Struct, frozen=True):
    """One policy by which a preemption costs work or retries: its field, its effect, and the remedy."""

    field: str
    value: str
    effect: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value} {self.effect} ({self.remedy})"


class Rewritten(msgspec.Struct, frozen=True):
    """A spec by which preemptions cost nothing, and a sentence for each change."""

    spec: dict[str, Any]
    changes: tuple[str, ...]


def find_preemption_losses(spec: Mapping[str, Any]) -> tuple[Loss, ...]:
    """Return what preemptions of this vcjob cost; `spec` is that of a `batch.volcano.sh/v1alpha1` Job."""
    return tuple(loss for field, policies in _policy_lists_of(spec) for loss in _losses_in_list(field, policies, spec))


def rewrite_policies(spec: Mapping[str, Any]) -> Rewritten:
    """Rewrite the spec so that a preemption neither ends nor restarts the job, nor counts as a failure.

    Real failures are handled as before, with two exceptions: an exit by SIGKILL (as by the OOM killer) or SIGTERM is
    treated as an eviction, and if the restarts of a gang count, maxRetry is raised. `PodPending` and `TaskCompleted`
    stay, because a preemption is indistinguishable from their intended cases.
    """
    rewritten = _copy_policy_lists(spec)
    changes: list[str] = []
    for field, policies in _policy_lists_of(rewritten):
        policies[:] = _rewrite_policy_list(field, policies, rewritten, changes)
    if _has_retry_loss(rewritten) and _maximum_retries(rewritten) < MANY_RETRIES:
        changes.append(f"spec.maxRetry: {_maximum_retries(rewritten)} became {MANY_RETRIES}, because preemptions count")
        rewritten["maxRetry"] = MANY_RETRIES
    return Rewritten(rewritten, tuple(changes))


def acts_on_evicted_pod(spec: Mapping[str, Any]) -> bool:
    """Return whether a policy ends or restarts anything when a single pod is evicted, rather than replace the pod."""
    return any(map(_has_reaction, (policies for _, policies in _policy_lists_of(spec))))


def has_replica(spec: Mapping[str, Any], task: str, index: str) -> bool:
    """Return whether the vcjob has a pod of this task and index."""
    replicas = next((one.get("replicas", 1) for one in spec.get("tasks") or [] if one.get("name") == task), 0)
    return index.isdecimal() and int(index) < replicas


def _has_reaction(policies: Sequence[Policy]) -> bool:
    guarded: set[Any] = set()
    for policy in policies:
        if policy.get("action") in _COSTS:
            events = set(_expand_policy_events(policy))
            is_end_guarded = guarded.issuperset(EVICTED_EXIT_CODES)
            if events & _EVICTION_EVENTS or ("PodFailed" in events and not is_end_guarded):
                return True
            if policy.get("exitCode") in set(EVICTED_EXIT_CODES) - guarded:
                return True
        guarded.add(policy.get("exitCode"))
    return False


def _copy_policy_lists(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the spec, with mutable lists of policies."""
    changed = dict(spec)
    if spec.get("policies"):
        changed["policies"] = list(spec["policies"])
    if spec.get("tasks"):
        changed["tasks"] = [
            {**task, "policies": list(task["policies"])} if task.get("policies") else task for task in spec["tasks"]
        ]
    return changed


def _policy_lists_of(spec: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    if spec.get("policies"):
        yield "spec.policies", spec["policies"]
    for number, task in enumerate(spec.get("tasks") or []):
        if task.get("policies"):
            yield f"spec.tasks[{number}].policies", task["policies"]


def _expand_policy_events(policy: Policy) -> list[str]:
    """Return its events, with `*` expanded; Volcano ignores `PodPending` without a timeout."""
    named = [*(policy.get("events") or []), *([policy["event"]] if policy.get("event") else [])]
    events = list(_EVENTS) if "*" in named else list(dict.fromkeys(named))
    return [event for event in events if event != "PodPending" or policy.get("timeout")]


def _is_gang(spec: Mapping[str, Any]) -> bool:
    """Whether it runs with all of its pods or not at all: its members stop and are restored together."""
    pods: int = sum(task.get("replicas", 1) for task in spec.get("tasks") or [])
    least: int = spec.get("minAvailable") or pods
    return 1 < pods <= least


def _maximum_retries(spec: Mapping[str, Any]) -> int:
    return int(spec.get("maxRetry") or DEFAULT_RETRIES)


def _has_exit_code_guards(before: Sequence[Policy]) -> bool:
    """Whether earlier policies already match the ends of evicted pods."""
    return {one.get("exitCode") for one in before}.issuperset(EVICTED_EXIT_CODES)


def _losses_in_list(field: str, policies: Sequence[Policy], spec: Mapping[str, Any]) -> Iterator[Loss]:
    for number, policy in enumerate(policies):
        action, where = policy.get("action", ""), f"{field}[{number}]"
        if action not in _COSTS:
            continue
        for event in _expand_policy_events(policy):
            if event in _MOMENTS and not (event == "PodFailed" and _has_exit_code_guards(policies[:number])):
                loss = _build_loss(where, event, action, spec)
                if loss is not None:
                    yield loss
        if policy.get("exitCode") in EVICTED_EXIT_CODES:
            value = f"exitCode {policy['exitCode']}: {action}"
            if action == "RestartJob" and _is_gang(spec):
                counted = _retry_loss(where, value, spec)
                if counted is not None:
                    yield counted
            else:
                effect = f"is how an evicted pod ends, and {_COSTS[action]}"
                yield Loss(where, value, effect, "leave it out, or write action: SyncJob")


def _build_loss(where: str, event: str, action: str, spec: Mapping[str, Any]) -> Loss | None:
    value = f"{event}: {action}"
    effect = f"takes effect {_MOMENTS[event]}, and {_COSTS[action]}"
    if event == "PodPending":
        return Loss(where, value, effect, "raise its timeout to the longest wait that you can bear")
    if event == "TaskCompleted":
        return Loss(where, value, effect, "have the program exit with another status on SIGTERM")
    if action == "RestartJob" and _is_gang(spec):
        return _retry_loss(where, value, spec)
    if action in _RESTARTS:
        effect += f", which counts towards maxRetry {_maximum_retries(spec)}"
    if event == "PodFailed":
        guards = ", ".join(f"{{exitCode: {code}, action: {NO_ACTION}}}" for code in EVICTED_EXIT_CODES)
        return Loss(where, value, effect, f"put {guards} before it")
    return Loss(where, value, effect, "leave it out: the pod is made again without it")


def _retry_loss(where: str, value: str, spec: Mapping[str, Any]) -> Loss | None:
    if _maximum_retries(spec) >= MANY_RETRIES:
        return None
    effect = f"counts every preemption of the gang, and the job fails for good after {_maximum_retries(spec)}"
    return Loss(where, value, effect, f"set spec.maxRetry to {MANY_RETRIES}")


def _has_retry_loss(spec: Mapping[str, Any]) -> bool:
    return any(loss.remedy.startswith("set spec.maxRetry") for loss in find_preemption_losses(spec))


def _rewrite_policy_list(
    field: str, policies: Sequence[Policy], spec: Mapping[str, Any], changes: list[str]
) -> list[Policy]:
    kept: list[Policy] = []
    guarded = False
    for number, policy in enumerate(policies):
        action = policy.get("action", "")
        if action not in _COSTS or (action == "RestartJob" and _is_gang(spec)):
            kept.append(policy)
            continue
        remaining, gone = _without_evictions(policy)
        if gone:
            changes.append(f"{field}[{number}]: {gone}: {action} was taken out")
        if remaining is not None:
            kept.append(remaining)
        ends = "PodFailed" in _expand_policy_events(policy) and not _has_exit_code_guards(policies[:number])
        guarded = guarded or ends or policy.get("exitCode") in EVICTED_EXIT_CODES
    return _with_guards(field, kept, changes) if guarded else kept


def _without_evictions(policy: Policy) -> tuple[Policy | None, str]:
    """Return the policy without events of evictions, and the removed events."""
    if policy.get("exitCode") in EVICTED_EXIT_CODES:
        return None, f"exitCode {policy['exitCode']}"
    events = _expand_policy_events(policy)
    lasting = [event for event in events if event not in _EVICTION_EVENTS]
    if lasting == events:
        return policy, ""
    others = {name: value for name, value in policy.items() if name not in {"event", "events"}}
    gone = ", ".join(event for event in events if event not in lasting)
    return ({**others, "events": lasting} if lasting else None), gone


def _with_guards(field: str, policies: list[Policy], changes: list[str]) -> list[Policy]:
    """Prepend a policy for each exit code of an evicted pod."""
    present = [one for one in policies if one.get("exitCode") in EVICTED_EXIT_CODES]
    codes = [code for code in EVICTED_EXIT_CODES if all(one["exitCode"] != code for one in present)]
    changes.extend(f"{field}: exitCode {code}: {NO_ACTION} was put first" for code in codes)
    if policies[: len(present)] != present:
        moved = ", ".join(f"exitCode {one['exitCode']}: {one['action']}" for one in present)
        changes.append(f"{field}: {moved} was put before other policies")
    others = [one for one in policies if one not in present]
    return [*({"exitCode": code, "action": NO_ACTION} for code in codes), *present, *others]
