"""Retried writes of a pod's status that were refused first and are now allowed.

client-go retries a request that was refused with `Retry-After` up to ten times, byte for byte: with the pod's
resourceVersion from before we wrote our mark. The API server would answer 409 then, and the scheduler would choose
again, most likely victims other than the saved ones. So the webhook patches the pod's current resourceVersion into the
write, if nothing that the writer can have read has changed except the mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cedana_sched.kube.builtin_kinds import DISRUPTED
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names

_EVICTING: Final = frozenset({"Ready", DISRUPTED})
"""Conditions that schedulers write on eviction."""
_OF_REFUSALS: Final = frozenset({names.EVICTION_REQUESTED, names.DISRUPTION_REQUESTED})
"""Annotations that we write when we refuse an eviction."""
_OF_EACH_WRITE: Final = frozenset({"annotations", "generation", "managedFields", "resourceVersion"})


def patch_for_stale_write(before: Object, now: Object) -> tuple[Object, ...]:
    """Return a JSON patch for a stale write; empty if the write needs none or must not get one.

    Args:
        before: the stored pod.
        now: the pod as the write would store it. Fields unknown to the writer's Kubernetes version are missing.
    """
    is_fresh = before["metadata"].get("resourceVersion") == now["metadata"].get("resourceVersion")
    if is_fresh or not _is_contained_in(_parts_read_by_writer(now), _parts_read_by_writer(before)):
        return ()
    metadata = before["metadata"]
    return (
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "add", "path": "/metadata/annotations", "value": metadata.get("annotations") or {}},
    )


def _parts_read_by_writer(pod: Object) -> Object:
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key not in _OF_REFUSALS}
    conditions = [one for one in status.get("conditions") or () if one.get("type") not in _EVICTING]
    return {
        "metadata": {key: value for key, value in metadata.items() if key not in _OF_EACH_WRITE},
        "annotations": sorted(annotations.items()),
        "status": {**status, "conditions": conditions},
    }


def _is_contained_in(part: Any, whole: Any) -> bool:
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return all(key in whole and _is_contained_in(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_is_contained_in, part, whole))
    return bool(part == whole)
