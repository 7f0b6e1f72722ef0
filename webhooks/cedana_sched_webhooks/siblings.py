"""Whether a new pod has siblings that nothing tells apart: the pods of a Job without indices, or of a ReplicaSet.

Each of them gets a number by chance, so that no two are saved under one name; which snapshot one of them continues is
the coordinator's choice, who alone sees that no other one has it.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec
import structlog

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import JOBS, REPLICA_SETS, Resource
from cedana_sched_webhooks.identity import is_numbered

log = structlog.get_logger(__name__)

LARGEST_NUMBER: Final = 2**31
"""Of 1,000 siblings, two have the same number once in 4,000 times."""


class Counted(msgspec.Struct, frozen=True):
    """How many pods a controller runs at a time; Kubernetes' default is 1 for both kinds."""

    parallelism: int | None = None
    replicas: int | None = None

    @property
    def several(self) -> bool:
        return max(self.parallelism or 0, self.replicas or 0) > 1


class Controller(msgspec.Struct, frozen=True):
    spec: Counted = Counted()


_COUNTING: Final[dict[tuple[str, str], Resource]] = {
    (resource.group_version, resource.kind): resource for resource in (JOBS, REPLICA_SETS)
}


class Siblings:
    """Asks the API server, and only for pods of such controllers."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def number_among(self, pod: Object, namespace: str) -> int | None:
        """A number by chance; None for a pod that has no siblings, or a number of its own."""
        owner = _controller(pod)
        resource = _COUNTING.get((str(owner.get("apiVersion")), str(owner.get("kind"))))
        if resource is None or is_numbered(pod):
            return None
        try:
            found = await self._api.get(resource, str(owner.get("name")), namespace, into=Controller)
        except ApiError as error:  # with siblings or without: a number by chance is wrong for nobody
            log.warning("controller not read", kind=resource.kind, name=owner.get("name"), problem=error.message)
        else:
            if not found.spec.several:
                return None
        return secrets.randbelow(LARGEST_NUMBER)


def _controller(pod: Object) -> dict[str, Any]:
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})
