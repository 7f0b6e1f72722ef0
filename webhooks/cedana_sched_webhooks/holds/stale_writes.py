"""The write of a pod's status that was refused before, and comes again when it is allowed at last.

Facts: client-go repeats what was refused with `Retry-After`, up to ten times, byte for byte: with the version of the
pod from before our mark was written. The API server would answer 409 then, and the scheduler would choose anew, most
likely others than those that have been saved. So the write gets the version that the pod has now, if nothing that the
writer could know of has changed but the mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names

_EVICTING: Final = frozenset({"Ready", "DisruptionTarget"})
"""Conditions that schedulers write when they evict."""
_OF_EACH_WRITE: Final = frozenset({"annotations", "generation", "managedFields", "resourceVersion"})


def renewal(before: Object, now: Object) -> tuple[Object, ...]:
    """A JSON patch of a write, empty if it needs none or must not get one.

    Args:
        before: the pod, as it is.
        now: the pod, as it is to be. A field that the writer's version of Kubernetes does not know is missing.
    """
    is_fresh = before["metadata"].get("resourceVersion") == now["metadata"].get("resourceVersion")
    if is_fresh or not _is_within(_read_by_the_writer(now), _read_by_the_writer(before)):
        return ()
    metadata = before["metadata"]
    return (
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "add", "path": "/metadata/annotations", "value": metadata.get("annotations") or {}},
    )


def _read_by_the_writer(pod: Object) -> Object:
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key != names.EVICTION_REQUESTED
    }
    conditions = [one for one in status.get("conditions") or () if one.get("type") not in _EVICTING]
    return {
        "metadata": {key: value for key, value in metadata.items() if key not in _OF_EACH_WRITE},
        "annotations": sorted(annotations.items()),
        "status": {**status, "conditions": conditions},
    }


def _is_within(part: Any, whole: Any) -> bool:
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return all(key in whole and _is_within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_is_within, part, whole))
    return bool(part == whole)
