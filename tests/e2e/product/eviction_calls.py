"""Evictions as the descheduler, Karpenter and the Cluster Autoscaler perform them: by calls of `pods/eviction`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import tenacity

from tests.cluster.api.client import Object
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.cordoning import cordoned

EVICTOR: Final = "evictor"
_REFUSED: Final = "(TooManyRequests)"
_GONE: Final = ("(NotFound)", "(Conflict)")
"""The API server's answers once the pod is gone, or another one has its name."""


@asynccontextmanager
async def evicted(namespace: Namespace, node: str, selector: str) -> AsyncIterator[None]:
    """A ServiceAccount calls for all these pods at a time, again as long as it is refused; the node is cordoned.

    It calls as Karpenter does: with the pod's uid, after pauses from 100 ms to 10 s.
    """
    await namespace.apply(*_rights(namespace.name))
    async with cordoned(namespace, node), asyncio.TaskGroup() as group:
        for pod in await namespace.pods(selector):
            if pod["spec"]["nodeName"] == node:
                group.create_task(_evict(namespace, pod), name=f"eviction of {pod['metadata']['name']}")
        yield


async def _evict(namespace: Namespace, pod: Object) -> None:
    """Return once a call was accepted, or finds the pod no more."""
    await tenacity.AsyncRetrying(
        wait=tenacity.wait_exponential(multiplier=0.1, max=10),
        stop=tenacity.stop_after_delay(patient(120)),
        retry=tenacity.retry_if_result(lambda is_gone: not is_gone),
    )(_call, namespace, pod)


async def _call(namespace: Namespace, pod: Object) -> bool:
    """One call; False if it was refused for now."""
    metadata = {"name": pod["metadata"]["name"], "namespace": namespace.name}
    options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{metadata['name']}/eviction"
    account = f"--as=system:serviceaccount:{namespace.name}:{EVICTOR}"
    try:
        await namespace.kubectl("create", f"--raw={path}", "--filename=-", account, stdin=json.dumps(body).encode())
    except ClusterError as error:
        if not any(answer in str(error) for answer in (_REFUSED, *_GONE)):
            raise
        return _REFUSED not in str(error)
    return True


def _rights(namespace: str) -> list[Object]:
    rbac = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    subject = {"kind": "ServiceAccount", "name": EVICTOR, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": EVICTOR}},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": EVICTOR}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": EVICTOR},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": EVICTOR},
            "subjects": [subject],
        },
    ]
