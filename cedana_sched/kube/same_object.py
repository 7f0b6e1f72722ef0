"""Writes that are meant for one very object, and for no other one that has taken its name since."""

from __future__ import annotations

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError, ConflictError
from cedana_sched.kube.objects import Metadata, PartialObject
from cedana_sched.kube.resources import Resource


def unchanged(seen: Metadata) -> list[Object]:
    """What a JSON patch begins with that is meant for this object as it was seen: else the API server answers 422."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": seen.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": seen.resource_version},
    ]


async def patch_same(api: Api, resource: Resource, seen: Metadata, patch: Object) -> bool:
    """Apply a merge patch to the object of this uid; False: that one is gone.

    A conflict alone does not say so: the API server answers it also where others write the object all the time.

    Raises:
        ApiUnavailableError: others were faster; the same call may succeed later.
        ApiError: the API server refused.
    """
    body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": seen.uid}}
    try:
        await api.patch(resource, seen.name, seen.namespace, body)
    except AbsentError:
        return False
    except ConflictError as error:
        found = await api.find(resource, seen.name, seen.namespace, into=PartialObject)
        if found is None or found.metadata.uid != seen.uid:
            return False
        raise ApiUnavailableError(
            error.message, status=error.status, reason=error.reason, remedy="it is tried again"
        ) from error
    return True
