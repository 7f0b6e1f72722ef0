"""Writes with the object's identity as a precondition, so that another object of the same name is never changed."""

from __future__ import annotations

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError, ConflictError
from cedana_sched.kube.resources import Resource


def same_object_test(seen: Metadata) -> Object:
    """Return the test that makes a JSON patch apply to the object of this uid only: else the API server returns 422."""
    return {"op": "test", "path": "/metadata/uid", "value": seen.uid}


def same_version_tests(seen: Metadata) -> list[Object]:
    """Return the tests that make a JSON patch apply to this version only: else the API server returns 422."""
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": seen.resource_version}
    return [same_object_test(seen), version]


async def patch_same(
    api: Api, resource: Resource, seen: Metadata, patch: Object, *, subresource: str | None = None
) -> bool:
    """Apply a merge patch to the object of this uid; return False if that object is gone.

    A conflict alone does not prove that: the API server also returns it while other writers update the object.

    Raises:
        ApiUnavailableError: other writers were faster; a retry may succeed.
        ApiError: the API server refused the patch.
    """
    body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": seen.uid}}
    try:
        await api.patch(resource, seen.name, seen.namespace, body, subresource=subresource)
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
