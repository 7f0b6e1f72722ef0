"""Interfaces between the cluster coordinator and adapters of Kubernetes schedulers, beyond the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, Self, runtime_checkable

from cedana_sched.adapter.contract import Adapter
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.watching import Informer
from cedana_sched.model.diagnostic_findings import Finding
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces

OptedInSink = Callable[[str | None], None]
"""Gets the namespace of the pods that may be opted in now; None: pods of any namespace may be."""


class Policies(Protocol):
    """The cluster's CheckpointPolicies."""

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        """Return the policy of that name, as effective for pods of a namespace.

        Falls back to the policy `default`, then to built-in defaults, if the name is None, or the policy is missing,
        invalid or not allowed for the namespace. The pod webhook is stricter: it does not protect a new pod without a
        valid policy.
        """
        ...

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        """Return the effective policy of a protected pod: its queue's, unless that lets pods choose; else the pod's.

        If an adapter now reports another queue policy than at the pod's creation (see `QueuePolicies`), or several
        adapters report one, the result is the intersection: tenants can write on new pods, and in schedulers' objects.
        """
        ...


class Notes(Protocol):
    """Durable storage of an adapter for what its scheduler publishes only once: a small text."""

    async def read(self) -> bytes | None:
        """Return the last written text; None if there is none.

        Raises:
            RetryableError: the API server is unreachable.
        """
        ...

    async def write(self, notes: bytes) -> None:
        """Replace the text; durable on return.

        Raises:
            RetryableError: not written, or another coordinator is the leader now.
        """
        ...


class Snapshots(Protocol):
    """The cluster's snapshots."""

    def snapshots_of(self, namespace: str, identifier: str) -> Iterable[SnapshotRef]:
        """Return the restorable snapshots of an id, of all replicas."""
        ...


@dataclass(frozen=True)
class ClusterAccess:
    """Clients and caches that the coordinator shares with one adapter."""

    api: Api
    """Client of the API server, with the coordinator's RBAC rules."""
    events: EventRecorder
    """Publishes Events on objects."""
    pods: Informer[Pod]
    """Every protected pod of the served namespaces (label `names.PROTECTED`), with the labels and annotations
    registered in `kube.cached_metadata_keys`."""
    policies: Policies
    """Resolves the policy of a pod."""
    snapshots: Snapshots
    """Lists what can be restored."""
    namespace: str
    """Namespace of our own components."""
    notes: Notes
    """Private to the adapter."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's section of the configuration; the adapter defines its schema."""
    served: ServedNamespaces = EVERYWHERE
    """Namespaces in which adapters act; passed as `within` to their watches of namespaced kinds."""

    @cached_property
    def pods_by_uid(self) -> Index[str, Pod]:
        """`pods` by their uids, which are unique."""
        return Index(lambda pod: pod.metadata.uid, self.pods)

    def record_unreadable(self, resource: Resource, one: Unreadable) -> None:
        """Publish an Event on an object that cannot be parsed and is ignored; callback for `Informer`."""
        self.events.record_unreadable(resource, one)


@runtime_checkable
class ClusterAdapter(Adapter, Protocol):
    """An adapter that a cluster's coordinator can load."""

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Create the adapter, without requests to the API server."""
        ...

    async def run(self) -> None:
        """Run the adapter's watches, forever, as a task beside `reports`.

        Raises:
            AbsentError: the scheduler's kinds are not served. The coordinator retries until they are.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """An adapter that exposes its informers, so that missing RBAC permissions are visible.

    A refused watch retries forever; without this protocol the adapter would appear to run.
    """

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Return all informers that `run` runs."""
        ...


@runtime_checkable
class OptingIn(Protocol):
    """An adapter whose scheduler has queues that protect all of their pods.

    Supplies the annotations that the webhook writes at CREATE, for pods created while no webhook was available.
    """

    def opt_in_annotations(self, pod: Object) -> Mapping[str, str]:
        """Return the annotations from the pod's queue: an id if the pod names none; empty if the queue does not opt in.

        Args:
            pod: with only the labels and annotations registered in `kube.cached_metadata_keys`, and only the
            environment
                variable that names an id.
        """
        ...

    def on_more_opted_in(self, sink: OptedInSink) -> None:
        """Register `sink`, called when `opt_in_annotations` may yield more for further pods. Must not block."""
        ...


@runtime_checkable
class QueuePolicies(Protocol):
    """An adapter whose scheduler has queues with an admin-defined policy."""

    def queue_policy(self, pod: Pod) -> str | None:
        """Return the name of the policy of a pod's queue; None if no policy is named, or the queue is unknown.

        The queue is the one that the scheduler charges for the pod. Labels and annotations of the pod and its template
        are untrusted: the pod's creator wrote them.
        """
        ...


@runtime_checkable
class QueuePolicyChanges(Protocol):
    """An adapter that announces changes of its queues' policies, so that periodic snapshots follow them at once.

    Without this protocol they follow at the next change of a pod or of a policy.
    """

    def on_queue_policies_changed(self, sink: Callable[[], None]) -> None:
        """Register `sink`, called when `QueuePolicies.queue_policy` may have changed for pods. Must not block."""
        ...


@runtime_checkable
class Gangs(Protocol):
    """An adapter whose scheduler runs pods as gangs, whose members are saved together."""

    def gang_of(self, pod: Pod) -> str | None:
        """Return the name of the gang that the pod cannot run without; None if there is none, or it is unknown."""
        ...


@runtime_checkable
class Withdrawing(Protocol):
    """An adapter whose scheduler blocks without this product, while its objects reference the product."""

    async def withdraw(self) -> None:
        """Remove the references, so that the scheduler runs without this product; `run` still runs. Idempotent.

        Raises:
            ApiError: the API server refused.
        """
        ...


@runtime_checkable
class Diagnosing(Protocol):
    """An adapter that can check its scheduler's configuration."""

    @classmethod
    async def diagnose(cls, api: Api) -> list[Finding]:
        """Check what the caller's permissions show, in the order in which an admin would fix it.

        Returns:
            One finding if the scheduler is not installed.

        Raises:
            ApiError: the API server refused, or did not answer.
        """
        ...
