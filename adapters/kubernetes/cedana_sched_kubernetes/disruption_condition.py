"""The condition `DisruptionTarget` of a pod that is evicted, by which its Job does not count it as failed."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from cedana_sched.kube.builtin_kinds import DISRUPTED, Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError, ConflictError, RefusedByServerError
from cedana_sched.kube.patch_preconditions import same_object_test
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME

_INVALID: Final = 422


async def write_disruption_condition(api: Api, pod: Pod, reason: str, message: str) -> None:
    """Append the condition to the pod's status, if it has none. Idempotent; no-op if the pod is gone.

    Raises:
        ApiError: not written.
    """
    metadata = pod.metadata
    if any(one.type == DISRUPTED for one in pod.status.conditions):
        return
    condition = {
        "type": DISRUPTED,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": _format_time(SERVER_TIME.now()),
    }
    patch: list[Object] = [
        same_object_test(metadata),
        {"op": "add", "path": "/status/conditions/-", "value": condition},
    ]
    try:
        await api.patch(PODS, metadata.name, metadata.namespace, patch, subresource="status")
    except AbsentError:
        return
    except ConflictError as error:  # of concurrent writers; another pod of that name is a 422
        raise ApiUnavailableError(error.message, status=error.status, remedy="it is tried again") from error
    except RefusedByServerError as error:
        if error.status != _INVALID:  # else another pod has its name
            raise


def _format_time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
