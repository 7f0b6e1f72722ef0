"""The pod condition that says whether a checkpoint of the pod would fail, and what its owner can do about it.

The agent writes it on the pods of its own node, soon after all their containers run, and again when a user writes
another value into the annotation that requests it. A ValidatingAdmissionPolicy leaves an agent nothing else of a pod to
write (`agent/admission-policy.yaml` of the chart). The coordinator publishes the Event.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from cedana_sched.adapter.protected_pods import workload_of
from cedana_sched.agent.inspection_schedule import Look
from cedana_sched.agent.workload_inspections import WorkloadInspections
from cedana_sched.agent.workload_preflight import Inspection
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.patch_preconditions import same_object_test
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names

NO_OBSTACLE: Final = ("True", "NoObstacleFound", "Nothing was found that a checkpoint would fail for.")
UNKNOWN_REASON: Final = "NotInspected"


class CheckpointableConditions:
    """Writes the conditions of the pods of one node.

    Args:
        api: may patch the status of these pods.
        pod_of: returns the pod with a uid, None if it is not on this node.
        now: the time of day.
    """

    def __init__(
        self, api: Api, pod_of: Callable[[str], Pod | None], now: Callable[[], datetime] = SERVER_TIME.now
    ) -> None:
        self._api = api
        self._pod_of = pod_of
        self._now = now

    async def publish(self, look: Look, inspection: Inspection) -> None:
        """Write what a look has found, if that is new, or a user waits for it.

        Raises:
            ApiError: it was not written.
        """
        pod = self._pod_of(look.workload.uid)
        if pod is None or pod.finished:
            return
        before = pod.checkpointable
        if before is not None and inspection.unfinished is not None and not look.is_requested:
            return
        status, reason, message = _words_of(inspection)
        is_known = before is not None and (before.status, before.reason, before.message) == (status, reason, message)
        if is_known and not look.is_requested:
            return
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        is_changed = before is None or before.status != status or before.last_transition_time is None
        condition = {
            "type": names.CHECKPOINTABLE,
            "status": status,
            "reason": reason,
            "message": message,
            "lastProbeTime": now,
            "lastTransitionTime": now if before is None or is_changed else before.last_transition_time,
        }
        try:
            await self._api.patch(
                PODS, pod.metadata.name, pod.metadata.namespace, _patch_of(pod, condition), subresource="status"
            )
        except AbsentError:  # the pod is gone
            return


def _words_of(inspection: Inspection) -> tuple[str, str, str]:
    """Return status, reason and message."""
    if inspection.unfinished is not None:
        return "Unknown", UNKNOWN_REASON, f"Not all of its processes were looked at: {inspection.unfinished}."
    if inspection.obstacle is None:
        return NO_OBSTACLE
    return "False", inspection.obstacle.reason, f"A checkpoint would fail: {inspection.obstacle.message}"


def _patch_of(pod: Pod, condition: Object) -> list[Object]:
    """Return a patch that fails if it would change anything else than this condition of this pod."""
    types = [one.type for one in pod.status.conditions]
    patch = [same_object_test(pod.metadata)]
    if names.CHECKPOINTABLE in types:
        path = f"/status/conditions/{types.index(names.CHECKPOINTABLE)}"
        patch.append({"op": "test", "path": f"{path}/type", "value": names.CHECKPOINTABLE})
        patch.append({"op": "replace", "path": path, "value": condition})
    elif types:
        patch.append({"op": "add", "path": "/status/conditions/-", "value": condition})
    else:
        patch.append({"op": "add", "path": "/status/conditions", "value": [condition]})
    return patch


class PodInspections:
    """Starts the looks at the pods of one node, by the changes of the pods.

    Args:
        inspections: makes the looks.
        is_served: whether the suite acts on a pod.
        now: seconds since the epoch.
    """

    def __init__(
        self, inspections: WorkloadInspections, is_served: Callable[[Pod], bool], now: Callable[[], float]
    ) -> None:
        self._inspections = inspections
        self._is_served = is_served
        self._now = now

    def on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        """Sink of the pods of the node."""
        if now is None or now.finished or now.metadata.deletion_timestamp is not None or not self._is_served(now):
            if (gone := now or before) is not None:
                self._inspections.drop(gone.metadata.uid)
            return
        if (started := _started_at(now)) is None:
            return
        if before is None or _started_at(before) != started:
            self._inspections.on_started(workload_of(now), max(self._now() - started, 0.0))
        requested = now.metadata.annotations.get(names.PREFLIGHT_REQUESTED)
        if before is not None and requested and requested != before.metadata.annotations.get(names.PREFLIGHT_REQUESTED):
            self._inspections.request(workload_of(now))


def _started_at(pod: Pod) -> float | None:
    """Return when the last container started (seconds since the epoch); None until all have, and if none runs."""
    statuses = pod.status.container_statuses
    if len(statuses) < len(pod.spec.containers) or not all(one.has_run for one in statuses):
        return None
    return max((at for one in statuses if (at := one.started_at) is not None), default=None)
