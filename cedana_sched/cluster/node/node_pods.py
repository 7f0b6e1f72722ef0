"""The protected pods of this node according to the API server: which exist, are being deleted, or are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from pydantic import ValidationError

from cedana_sched.cluster.node.gone_pod_confirmation import PresentPods, Sink
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.node.prestop_server import same_token
from cedana_sched.kube.builtin_kinds import Metadata, PartialObject, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import HasMetadata, Informer, Watch
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import parse_stored_object
from cedana_sched.model.pod_indexing import wholes_of
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure, OnVolumeChange
from cedana_sched.model.preemption import CONFIRMATION_SECONDS, WorkloadRef
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces

MOST_ADDRESSES = 20
"""Maximum number of a pod's peer addresses to look up; members of one job that are connected to each other are
mostly among the first. Each address is a request of its own: it returns one pod or none, and a list of a whole
namespace may be many megabytes."""


class NodeShutdown(Protocol):
    """The kubelet's end of all pods of the node, without deleting them."""

    def is_in_progress(self) -> bool:
        """Return whether the kubelet ends them now."""
        ...

    def left_out_mark(self) -> str | None:
        """Return the value of `names.NOT_PREEMPTED` of pods that are not saved from it; None if there is none."""
        ...


class NodePods:
    """Tracks the protected pods of this node. Run `run` as a task.

    Pods of namespaces that are not served are included: the agent must list them to leave them alone, or to release
    them.

    Args:
        feed: has the orders for the pods.
        served: namespaces in which a deletion is held until its cause is reported.
        shutdown: of the node; None if pods are not saved from it.
        now: seconds since the epoch, by the API server.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        feed: OrderFeed,
        served: ServedNamespaces = EVERYWHERE,
        shutdown: NodeShutdown | None = None,
        now: Callable[[], float] = SERVER_TIME.seconds,
    ) -> None:
        self._shutdown = shutdown
        self._served = served
        self._now = now
        self.informer = Informer(
            Watch(api, PODS, Pod, labels=f"{names.PROTECTED}=true", fields=f"spec.nodeName={node}")
        )
        self.present = PresentPods(api, node, self.informer)
        self._api = api
        self._node = node
        self._feed = feed
        self._waits_end_at: dict[str, float] = {}
        """By uid of a deleted pod: until when an answer is awaited, in loop time. Each container calls, and the pod's
        own grace is counted after that, so that several waits would follow one another."""

    async def run(self) -> None:
        """Watch the pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run(), name="protected pods")
            group.create_task(self.present.run(), name="pods without label")

    def subscribe(self, sink: Sink) -> None:
        """See `PresentPods.subscribe`: a pod counts as gone only once the API server confirms it."""
        self.present.subscribe(sink)

    def uids(self) -> list[str]:
        """Return the uids of all pods of this node."""
        return [pod.metadata.uid for pod in self.present]

    def pod(self, uid: str) -> Pod | None:
        """Return the pod with this uid; None if it is not on this node."""
        return next((pod for pod in self.present if pod.metadata.uid == uid), None)

    async def is_on_node(self, workload: WorkloadRef) -> bool | None:
        """Return whether this is a pod of this node; None if no pod has its name and uid (any more).

        A pod that the informer lacks is read from the API server: the watch may lag, or our label was removed before
        the agent started. A pod that is found on this node is tracked from then on.

        Raises:
            ApiError: the pod cannot be read.
        """
        if (known := self.pod(workload.uid)) is not None:
            return (known.metadata.namespace, known.metadata.name) == (workload.namespace, workload.name)
        found = await self.present.find_and_track(workload)
        return found.spec.node_name == self._node if found is not None else None

    def pod_of_prestop_token(self, token: str, container: str = "") -> Pod | None:
        """Return the pod whose preStop path has this token and this container; pods of old versions name no container.

        If several pods have the token, because an earlier version of the webhook kept one that a user had copied,
        return the one that is being deleted.
        """
        known = ((pod.metadata.annotations.get(names.PRESTOP_TOKEN, ""), pod) for pod in self.present)
        found = [pod for own, pod in known if own and same_token(own, token) and _may_call(pod, container)]
        return max(found, key=lambda pod: pod.metadata.deletion_timestamp or "", default=None)

    def restore_failure_policy(self, workload: WorkloadRef) -> OnRestoreFailure:
        """Return `on_restore_failure` of the policy of a pod's Restore; the default policy's if the pod has none."""
        return self._restore_policy_of(workload).on_restore_failure

    def volume_change_policy(self, workload: WorkloadRef) -> OnVolumeChange:
        """Return `on_volume_change` of the policy of a pod's Restore; the default policy's if the pod has none."""
        return self._restore_policy_of(workload).on_volume_change

    def image_may_change(self, workload: WorkloadRef) -> bool:
        """Return whether the policy of a pod's Restore permits to restore it into containers of other images."""
        return self._restore_policy_of(workload).image_may_change

    def service_account_may_change(self, workload: WorkloadRef) -> bool:
        """Return whether the policy of a pod's Restore permits to restore it under another ServiceAccount."""
        return self._restore_policy_of(workload).service_account_may_change

    def images(self, uid: str) -> dict[str, str]:
        """Return the images of a pod's containers by container name, as in the pod's spec; empty for an unknown pod."""
        if (pod := self.pod(uid)) is None:
            return {}
        return {entry.name: entry.image for entry in (*pod.spec.containers, *pod.spec.init_containers)}

    def service_account(self, uid: str) -> str | None:
        """Return the name of a pod's ServiceAccount; None for an unknown pod."""
        pod = self.pod(uid)
        return pod.spec.service_account_name if pod is not None else None

    def _restore_policy_of(self, workload: WorkloadRef) -> CheckpointPolicy:
        for restore in self._feed.restores:
            if restore.spec.pod_ref.uid == workload.uid and restore.metadata.namespace == workload.namespace:
                try:
                    return parse_stored_object(CheckpointPolicy, restore.policy)
                except ValidationError:  # a newer coordinator's
                    break
        return CheckpointPolicy()

    async def wait_ended(self, uid: str) -> None:
        """Return when the pod has finished or no longer exists."""
        await self.informer.synced.wait()
        await _wait_until(self.present, lambda: (pod := self.pod(uid)) is None or pod.finished)

    async def wait_ended_or_backing_off(self, uid: str) -> None:
        """Return when `wait_ended` does, or when a container of the pod is in CrashLoopBackOff."""
        await self.informer.synced.wait()
        await _wait_until(self.present, lambda: (pod := self.pod(uid)) is None or pod.finished or _backs_off(pod))

    async def find_peer(self, workload: WorkloadRef, addresses: Collection[str]) -> str | None:
        """See `FindPeer`: a peer has the same controller, or is of the same JobSet, MPIJob or their like.

        One request for each address.

        Raises:
            ApiError: a request failed.
        """
        pod = self.pod(workload.uid)
        if pod is None or not (owners := _owners_of(pod.metadata)):
            return None
        for address in sorted(addresses)[:MOST_ADDRESSES]:
            at = {"fieldSelector": f"status.podIP={address},status.phase=Running"}  # a terminated pod keeps its address
            found, _ = await self._api.list_all(PODS, workload.namespace, at, into=PartialObject)
            for other in (one.metadata for one in found):
                if other.uid != workload.uid and owners & _owners_of(other):
                    return other.name
        return None

    async def wait_released(self, uid: str) -> None:
        """Return when no checkpoint of the pod is in flight, and none can be ordered any more."""
        await self._feed.wait_synced()
        if (pod := self.pod(uid)) is not None and self.is_served(pod) and await self._is_end_unexplained(pod):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._end_of_wait(pod)):
                    await self._wait_for_checkpoint_or_release(uid)
        await _wait_until(self._feed.checkpoints, lambda: not self._is_held(uid))

    def _end_of_wait(self, pod: Pod) -> float:
        """Return until when an answer is awaited: the same time for all waits of a deleted pod."""
        ends_at = asyncio.get_running_loop().time() + CONFIRMATION_SECONDS
        if pod.metadata.deletion_timestamp is None:  # a probe may have ended a container, and the pod may run on
            return ends_at
        left = frozenset(self.uids())
        self._waits_end_at = {uid: at for uid, at in self._waits_end_at.items() if uid in left}
        return self._waits_end_at.setdefault(pod.metadata.uid, ends_at)

    def is_served(self, pod: Pod) -> bool:
        """Return whether the pod's namespace is served."""
        return self._served.includes(pod.metadata.namespace)

    async def _is_end_unexplained(self, pod: Pod) -> bool:
        """Return whether the pod's end may be a shutdown of the node, or a preemption, that is not reported yet."""
        if self._shutdown is not None and self._shutdown.is_in_progress():
            return True
        return pod.is_deletion_to_be_explained and await self.is_deleted(pod)

    async def is_deleted(self, pod: Pod) -> bool:
        """Return whether the pod is being deleted, or is gone; True also if the API server does not answer.

        A container that a failed probe ends makes a preStop call as well, for which the coordinator publishes no
        verdict.
        """
        if pod.metadata.deletion_timestamp is not None:
            return True
        try:  # the kubelet may have seen a deletion first
            now = await self._api.get(PODS, pod.metadata.name, pod.metadata.namespace, into=PartialObject)
        except ApiError:  # the pod may be deleted
            return True
        return now.metadata.uid != pod.metadata.uid or now.metadata.deletion_timestamp is not None

    async def _wait_for_checkpoint_or_release(self, uid: str) -> None:
        """Return when a Checkpoint or an annotation explains the deletion, or the pod no longer runs."""
        by_checkpoint = asyncio.create_task(_wait_until(self._feed.checkpoints, lambda: self._has_checkpoint(uid)))
        by_word = asyncio.create_task(_wait_until(self.present, lambda: self._is_gone_or_not_preempted(uid)))
        waits = by_checkpoint, by_word
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _is_gone_or_not_preempted(self, uid: str) -> bool:
        if (pod := self.pod(uid)) is None or pod.finished:
            return True
        mark = pod.metadata.annotations.get(names.NOT_PREEMPTED)
        left_out = self._shutdown.left_out_mark() if self._shutdown is not None else None
        return mark is not None and mark in {"true", left_out}

    def _has_checkpoint(self, uid: str) -> bool:
        now = self._now()
        return any(self._is_order_about_pod(one, uid) and one.explains_deletion(now) for one in self._feed.checkpoints)

    def _is_held(self, uid: str) -> bool:
        return any(self._is_order_about_pod(one, uid) and not one.is_terminal for one in self._feed.checkpoints)

    def _is_order_about_pod(self, one: OrderedObject, uid: str) -> bool:
        """Return whether an object is about a pod; never if its namespace is another one, whatever its spec names."""
        pod = self.pod(uid)
        return one.spec.pod_ref.uid == uid and (pod is None or one.metadata.namespace == pod.metadata.namespace)


def _may_call(pod: Pod, container: str) -> bool:
    return not container or any(one.name == container for one in (*pod.spec.containers, *pod.spec.init_containers))


def _owners_of(pod: Metadata) -> frozenset[tuple[str, str]]:
    """Return the objects to which the pod belongs: its controller, by uid, and those above it that its labels name."""
    owner = pod.controller_reference
    return wholes_of(pod.labels) | ({("", owner.uid)} if owner is not None else set())


def _backs_off(pod: Pod) -> bool:
    waiting = (status.state.get("waiting", {}) for status in pod.status.container_statuses)
    return any(one.get("reason") == "CrashLoopBackOff" for one in waiting)


async def _wait_until(shown: PresentPods | Informer[OrderedObject], holds: Callable[[], bool]) -> None:
    """Return when `holds` is true, evaluated after every change."""
    if holds():
        return
    changed = asyncio.Event()

    def on_change(before: HasMetadata | None, now: HasMetadata | None) -> None:
        del before, now
        if holds():
            changed.set()

    shown.subscribe(on_change)
    try:
        await changed.wait()
    finally:
        shown.unsubscribe(on_change)
