"""What an adapter for a scheduler on Kubernetes is given, and what it must do beside the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from cedana_sched.adapter.contract import Adapter
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.reading import Unreadable
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.watching import Informer
from cedana_sched.model.findings import Finding
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.served import EVERYWHERE, Served


class Policies(Protocol):
    """The CheckpointPolicies of the cluster."""

    def named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        """The policy of that name, as it counts for pods of a namespace.

        Without a name, or when it does not exist, cannot be read or is not for that namespace, `default`, else our own.
        The pod webhook is stricter: it does not protect a new pod whose policy is none for it.
        """
        ...

    def of(self, pod: Pod) -> CheckpointPolicy:
        """The policy of a protected pod: its queue's, as it is now, unless that one lets pods choose; else its own.

        Where the pod was created under another policy of its queue than an adapter knows now (see `QueuePolicies`), or
        several adapters know one, what all of them allow: tenants can write on new pods, and in objects of schedulers.
        """
        ...


class Notes(Protocol):
    """What an adapter's scheduler cannot tell it again: a small text that outlives the coordinator."""

    async def read(self) -> bytes | None:
        """What was written last; None before anything was.

        Raises:
            RetryableError: the API server could not be asked.
        """
        ...

    async def write(self, notes: bytes) -> None:
        """Replace it; once this returns, it is kept.

        Raises:
            RetryableError: it was not written, or another coordinator leads by now.
        """
        ...


class Snapshots(Protocol):
    """What has been saved in the cluster."""

    def snapshots_of(self, namespace: str, identifier: str) -> Iterable[SnapshotRef]:
        """Those of an id, of all replicas, that can be continued."""
        ...


@dataclass(frozen=True)
class ClusterAccess:
    """What the coordinator shares with one adapter."""

    api: Api
    events: EventRecorder
    pods: Informer[Pod]
    """Every protected pod of the served namespaces (label `names.PROTECTED`), with the labels and annotations that
    somebody has named (`kube.kept`)."""
    policies: Policies
    snapshots: Snapshots
    namespace: str
    """Of our own components."""
    notes: Notes
    """The adapter's own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's own part of the configuration; it says itself what may stand there."""
    served: Served = EVERYWHERE
    """Where adapters act; their watches of what has a namespace take it for `within`."""

    def unreadable(self, resource: Resource, one: Unreadable) -> None:
        """For `Informer`: have people told, on an object that cannot be read, that it is left alone."""
        self.events.unreadable(resource, one)


@runtime_checkable
class ClusterAdapter(Adapter, Protocol):
    """An adapter that the coordinator of a cluster can load."""

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Make it; nothing is asked of the API server yet."""
        ...

    async def run(self) -> None:
        """Keep its watches, for ever; the coordinator runs it as a task beside `reports`.

        Raises:
            AbsentError: the scheduler's kinds are not served. It is run again later, until they are.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """An adapter that names what it watches, so that people see where the API server does not let it.

    A watch retries for ever where it is refused; without this, such an adapter looks as if it ran.
    """

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """All that `run` keeps."""
        ...


@runtime_checkable
class OptingIn(Protocol):
    """An adapter whose scheduler has queues that protect all of their pods.

    What its part of the webhooks writes on such a pod at CREATE, a pod lacks that was created while no webhook
    answered.
    """

    def opted_in(self, pod: Object) -> Mapping[str, str]:
        """The annotations that its queue gives a pod: an id where the pod names none; empty where it gives none.

        Args:
            pod: of its labels and annotations there are those that somebody has named (`kube.kept`), of its variables
                the one that names an id.
        """
        ...

    def on_more_opted_in(self, sink: Callable[[], None]) -> None:
        """`sink` is called when `opted_in` may give something to pods that it gave nothing before. Must not block."""
        ...


@runtime_checkable
class QueuePolicies(Protocol):
    """An adapter whose scheduler has queues for which an admin names a policy."""

    def queue_policy(self, pod: Pod) -> str | None:
        """The name of the policy of a pod's queue; None: none is named, or its queue is not known.

        The queue is the one by which the scheduler counts the pod. What stands on the pod itself, and in its template,
        says nothing: it is as whoever created the pod has written it.
        """
        ...


@runtime_checkable
class Withdrawing(Protocol):
    """An adapter whose scheduler would stop without us, as long as its objects name us."""

    async def withdraw(self) -> None:
        """Let the scheduler go on without us; `run` still runs. Done twice, it does nothing.

        Raises:
            ApiError: the API server refused.
        """
        ...


@runtime_checkable
class Diagnosing(Protocol):
    """An adapter that can say whether its scheduler is set up for what we do."""

    @classmethod
    async def diagnose(cls, api: Api) -> list[Finding]:
        """What a person with these rights can see, in the order in which an admin would mend it.

        Returns:
            One finding where the scheduler is not there.

        Raises:
            ApiError: the API server refused, or did not answer.
        """
        ...
