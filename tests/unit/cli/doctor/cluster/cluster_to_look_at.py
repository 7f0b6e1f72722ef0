"""A cluster as the doctor sees it: objects in memory, selectors that are obeyed, and rights that may be missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.doctor.cluster.installation import Installation, find_releases
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError, RefusedByServerError
from cedana_sched.kube.resources import DEPLOYMENTS, ESSENTIAL, NODES, Resource
from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched.testing.selectors import selects

NAMESPACE = "cedana-system"
RELEASE = "cedana-sched"
IMAGE = "registry.example/cedana-sched-control:1.2"


def ours(component: str, **labels: str) -> dict[str, str]:
    """Labels that the chart writes."""
    prefix = "app.kubernetes.io"
    return {f"{prefix}/part-of": RELEASE, f"{prefix}/component": component, f"{prefix}/version": "1.2", **labels}


def deployment(component: str, namespace: str = NAMESPACE, *, replicas: int = 2, available: int = 2) -> Object:
    metadata = {"name": f"{RELEASE}-{component}", "namespace": namespace, "labels": ours(component)}
    template = {"spec": {"containers": [{"name": component, "image": IMAGE}]}}
    spec = {"replicas": replicas, "template": template}
    return {"metadata": metadata, "spec": spec, "status": {"availableReplicas": available}}


class Cluster:
    """What `ClusterReader` asks of an `Api`. Kubernetes' kinds and ours are served, and others that objects are of."""

    def __init__(self) -> None:
        self.there: dict[Resource, list[Object]] = {resource: [] for resource in ESSENTIAL}
        self.kubelets: dict[str, dict[str, Any]] = {}
        """Configurations of the kubelets that answer, by node."""
        self.denied: set[tuple[Resource, str | None]] = set()
        """Kinds that may not be read, with the namespace, or None: not everywhere at once."""
        self.admit: Callable[[Object], Object] = lambda body: body
        """What an object becomes on its way into the store; it raises what the API server answers instead."""
        self.put(DEPLOYMENTS, deployment("coordinator"), deployment("webhooks"))

    def put(self, resource: Resource, *bodies: Object) -> Cluster:
        self.there.setdefault(resource, []).extend(bodies)
        return self

    def deny(self, resource: Resource, *namespaces: str | None) -> Cluster:
        self.denied |= {(resource, namespace) for namespace in namespaces or (None, NAMESPACE)}
        return self

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: Any
    ) -> tuple[tuple[Any, ...], str]:
        bodies = [one for one in self._readable(resource, namespace) if selects(one, namespace, query or {})]
        return tuple(msgspec.convert(one, into) for one in bodies), "1"

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: Any) -> Any:
        bodies = [one for one in self._readable(resource, namespace) if one["metadata"]["name"] == name]
        return msgspec.convert(bodies[0], into) if bodies else None

    find_metadata = find

    async def read_kubelet_configuration(self, node: str) -> dict[str, Any]:
        if (NODES, node) in self.denied:
            raise RefusedByServerError("forbidden", status=403, reason="Forbidden")
        if node not in self.kubelets:
            raise ApiUnavailableError("no answer of the kubelet", status=502)
        return self.kubelets[node]

    async def create_dry(self, resource: Resource, body: Object, *, into: Any) -> Any:
        if (resource, body["metadata"]["namespace"]) in self.denied:
            message = f'POST: 403 {resource.plural} is forbidden: User "me" cannot create resource "{resource.plural}"'
            raise RefusedByServerError(message, status=403, reason="Forbidden")
        return msgspec.convert(self.admit(body), into)

    def _readable(self, resource: Resource, namespace: str | None) -> list[Object]:
        if (resource, namespace) in self.denied:
            raise RefusedByServerError("forbidden", status=403, reason="Forbidden")
        if resource not in self.there:
            raise AbsentError("not served", status=404)
        return [one for one in self.there[resource] if namespace in {None, one["metadata"].get("namespace")}]

    async def installed(self) -> Installation:
        return (await find_releases(self.reads))[0]

    @property
    def reads(self) -> ClusterReader:
        return ClusterReader(cast("Api", self))

    async def findings(self, look: Callable[[ClusterReader, Installation], Awaitable[list[Finding]]]) -> list[str]:
        """Of a check of what was installed, as `level sentence`."""
        return said(await look(self.reads, await self.installed()))


def said(findings: list[Finding]) -> list[str]:
    """As `level sentence`; whatever is not well has a remedy."""
    assert all(one.remedy for one in findings if one.level is not Level.OK)
    return [f"{one.level} {one.message}" for one in findings]
