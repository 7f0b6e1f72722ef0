"""Reads of the commands, with the rights of their caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.kubectl.view_builders import (
    SnapshotsByIdentity,
    key_of,
    view_checkpoint,
    view_event,
    view_hold,
    view_hold_as_operation,
    view_pod,
    view_policy,
    view_restore,
)
from cedana_sched.cli.kubectl.views import HoldView, OperationView, PodDetails, PodView, PolicyView
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError
from cedana_sched.kube.own_kinds.shown_records import CheckpointRead, EventRead, HoldRead, PolicyRead, RestoreRead
from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CHECKPOINTS,
    EVENTS,
    PODS,
    PREEMPTION_HOLDS,
    RESTORES,
    Resource,
)
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.model.errors import NotFoundError, UsageError
from cedana_sched.model.objects.names import PROTECTED
from cedana_sched.model.texts import printable_text

T = TypeVar("T")

MOST_EVENTS: Final = 20
_NOT_INSTALLED: Final = "install cedana-sched in the cluster, or select another one with --context"


class ClusterReads:
    """Reads views.

    Every method raises MissingPermissionError if a right is missing, and UsageError if cedana-sched is not installed.
    """

    def __init__(self, api: Api, namespace: str | None, note: Callable[[str], None]) -> None:
        """Read from one namespace, or from all if `namespace` is None; `note` gets what cannot be shown, and why."""
        self._reads = ClusterReader(api)
        self._namespace = namespace
        self._note = note

    async def pods(self) -> list[PodView]:
        """Return the protected pods."""
        snapshots = SnapshotsByIdentity(await self._checkpoints())
        pods = await self._read(PODS, into=Pod, labels=f"{PROTECTED}=true")
        found = list[PodView]()
        for pod in pods:
            view = view_pod(pod, snapshots)
            if view is not None:
                found.append(view)
            else:
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                self._note(f"Pod {name} is left out, its annotations name no identity: it is not saved")
        return sorted(found, key=lambda one: (one.namespace, one.id, one.index, one.name))

    async def details(self, name: str) -> PodDetails:
        """Return all about one protected pod; the reader must have a namespace.

        Raises:
            NotFoundError: there is no such pod, or it is not protected.
        """
        namespace = self._namespace
        pod = await self._reads.find(PODS, name, namespace, into=Pod)
        if pod is None:
            remedy = "see 'kubectl cedana list'; --namespace selects another namespace"
            raise NotFoundError("POD", name, f"is no pod of namespace {namespace}", remedy=remedy)
        checkpoints = await self._checkpoints()
        snapshots = SnapshotsByIdentity(checkpoints)
        view = view_pod(pod, snapshots)
        if view is None:
            remedy = (
                "see docs/kubernetes.md for what protects a pod; 'kubectl describe pod' may have an Event NotProtected"
            )
            raise NotFoundError("POD", name, "is not protected", remedy=remedy)
        key = (view.namespace, view.id, view.index)
        made = [view_checkpoint(one, snapshots) for one in checkpoints if key_of(one) == key]
        made += [view_restore(one, snapshots) for one in await self._restores() if key_of(one) == key]
        about = f"involvedObject.uid={pod.metadata.uid}"
        events = await self._read(EVENTS, into=EventRead, fields=about)
        latest = sorted(map(view_event, events), key=lambda one: one.at or 0.0)[-MOST_EVENTS:]
        return PodDetails(pod=view, operations=tuple(sorted(made, key=_began_at)), events=tuple(latest))

    async def operations(self) -> list[OperationView]:
        """Return what is in progress, the oldest first."""
        checkpoints = await self._checkpoints()
        snapshots = SnapshotsByIdentity(checkpoints)
        found = [view_hold_as_operation(one) for one in await self._holds() if one.is_in_flight]
        found += [view_checkpoint(one, snapshots) for one in checkpoints if one.is_in_flight]
        found += [view_restore(one, snapshots) for one in await self._restores() if one.is_in_flight]
        return sorted(found, key=_began_at)

    async def holds(self) -> list[HoldView]:
        """Return the PreemptionHolds, the oldest first."""
        return sorted(map(view_hold, await self._holds()), key=lambda one: one.began_at or 0.0)

    async def policies(self, name: str | None = None) -> list[PolicyView]:
        """Return all CheckpointPolicies, or that of this name.

        Raises:
            NotFoundError: there is none of this name.
        """
        if name is None:
            found = await self._read(CHECKPOINT_POLICIES, into=PolicyRead)
            return sorted(map(view_policy, found), key=lambda one: one.name)
        try:
            one = await self._reads.find(CHECKPOINT_POLICIES, name, into=PolicyRead)
        except ApiUnavailableError as error:
            if error.status != 404:
                raise
            raise _not_installed_error() from error
        if one is None:
            raise NotFoundError("POLICY", name, "is no CheckpointPolicy", remedy="see 'kubectl cedana policy'")
        return [view_policy(one)]

    async def _checkpoints(self) -> list[CheckpointRead]:
        return await self._read(CHECKPOINTS, into=CheckpointRead)

    async def _restores(self) -> list[RestoreRead]:
        return await self._read(RESTORES, into=RestoreRead)

    async def _holds(self) -> list[HoldRead]:
        return await self._read(PREEMPTION_HOLDS, into=HoldRead)

    async def _read(self, resource: Resource, *, labels: str = "", fields: str = "", into: type[T]) -> list[T]:
        namespace = self._namespace if resource.namespaced else None
        try:
            return await self._reads.read_readable(
                resource, namespace, labels=labels, fields=fields, into=into, unreadable=self._note_unreadable
            )
        except AbsentError as error:
            raise _not_installed_error() from error

    def _note_unreadable(self, resource: Resource, one: Unreadable) -> None:
        name = "/".join(filter(None, (one.metadata.namespace, one.metadata.name)))
        self._note(f"{resource.kind} {name} is left out, it cannot be read: {printable_text(one.problem)}")


def _not_installed_error() -> UsageError:
    return UsageError("--context", "", "selects a cluster that does not serve our kinds", remedy=_NOT_INSTALLED)


def _began_at(one: OperationView) -> float:
    return one.began_at or 0.0
