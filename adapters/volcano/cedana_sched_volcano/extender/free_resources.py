"""Free resources of each node, as Volcano counts them (pkg/scheduler/api: resource_info.go, pod_info.go; 1.14).

All pods on the node count by their requests, of any scheduler. Terminating pods do not count, nominated ones do
(`FutureIdle`).
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.index import Index
from cedana_sched.kube.quantities import parse_thousandths, parse_whole
from cedana_sched.kube.resources import NODES, PODS, UNFINISHED_PODS
from cedana_sched.kube.watching import Informer, Watch

_COUNTED = frozenset({"memory", "pods"})
"""Resources whose unit is not a thousandth."""


class _KubernetesStruct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class OccupantMetadata(_KubernetesStruct, frozen=True):
    """Metadata fields kept of tens of thousands of pods."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class Resources(_KubernetesStruct, frozen=True):
    requests: dict[str, str] = {}


class Container(_KubernetesStruct, frozen=True):
    resources: Resources = Resources()
    restart_policy: str = ""


class OccupantSpec(_KubernetesStruct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str] = {}


class OccupantStatus(_KubernetesStruct, frozen=True):
    nominated_node_name: str = ""


class Occupant(_KubernetesStruct, frozen=True):
    """A pod, reduced to its resources and node."""

    metadata: OccupantMetadata
    spec: OccupantSpec = OccupantSpec()
    status: OccupantStatus = OccupantStatus()

    @property
    def occupied_node(self) -> str | None:
        """Node on which it uses resources; None if it is terminating or unbound."""
        return None if self.metadata.deletion_timestamp is not None else self.spec.node_name or None

    @property
    def nominated_node(self) -> str | None:
        """Node for which it is nominated."""
        if self.spec.node_name or self.metadata.deletion_timestamp is not None:
            return None
        return self.status.nominated_node_name or None

    @property
    def used_amounts(self) -> Counter[str]:
        """Amounts that it uses, including sidecars, but not terminating init containers."""
        running = [*self.spec.containers, *(one for one in self.spec.init_containers if one.restart_policy == "Always")]
        found = Counter({"pods": 1})
        for requests in (self.spec.overhead, *(one.resources.requests for one in running)):
            found.update(_parse_amounts(requests))
        return found


class NodeStatus(_KubernetesStruct, frozen=True):
    allocatable: dict[str, str] = {}


class Node(_KubernetesStruct, frozen=True):
    metadata: OccupantMetadata
    status: NodeStatus = NodeStatus()


class FreeResources:
    """Tracks all nodes and all pods of a cluster. Run `run` of both informers as tasks."""

    def __init__(self, api: Api) -> None:
        self.nodes = Informer(Watch(api, NODES, Node))
        self.pods = Informer(Watch(api, PODS, Occupant, fields=UNFINISHED_PODS))
        self._taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._waiting: Index[str, Occupant] = Index(lambda pod: pod.nominated_node, self.pods)
        self.pods.subscribe(self._on_pod_change)

    def free_resources(self, node: str, preemptor: str) -> dict[str, float] | None:
        """See `ProtectedPodStates.free_resources`."""
        known = self.nodes.get(node)
        if known is None:
            return None
        left = Counter(_parse_amounts(known.status.allocatable))
        left.subtract(self._taken.get(node, {}))
        for pod in self._waiting.objects_of(node):
            if pod.metadata.uid != preemptor:
                left.subtract(pod.used_amounts)
        return {name: float(amount) for name, amount in left.items()}

    def _on_pod_change(self, before: Occupant | None, now: Occupant | None) -> None:
        """Sink of an informer."""
        if before is not None and (node := before.occupied_node) is not None:
            taken = self._taken[node]
            taken.subtract(before.used_amounts)
            if not taken["pods"]:
                del self._taken[node]
        if now is not None and (node := now.occupied_node) is not None:
            self._taken[node].update(now.used_amounts)


def _parse_amounts(quantities: dict[str, str]) -> dict[str, int]:
    return {name: (parse_whole if name in _COUNTED else parse_thousandths)(text) for name, text in quantities.items()}
