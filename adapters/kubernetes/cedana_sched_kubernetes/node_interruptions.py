"""Saves the pods of nodes that are about to be interrupted, as far as the time until then allows.

A notice is followed by three steps: the node is cordoned; the pods' saves are planned, and those of the plan reported;
and each pod whose save is released is evicted, so that it continues elsewhere. Budgets do not delay the saves: all pods
of the node end with it. Whenever a save is over, whatever it led to, the pods that were left out are planned again.

While the kubelet shuts the node down, it ends the pods itself: only pods whose preStop hook waits, or is yet to come,
are saved; those that are left out end as without us; and a saved pod is not evicted. The mark of a pod that is left out
names the notice: the pod may outlive a shutdown that is cancelled, or that the machine's end cuts off.

If the notice is withdrawn, what was reported is cancelled, and our cordon is undone. Pods that are saved, and that the
kubelet has not ended, run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

import msgspec
import structlog

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.mark_removal import is_running
from cedana_sched.adapter.protected_pods import build_victim, mark_left_out
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.kube.builtin_kinds import Node, Pod
from cedana_sched.kube.errors import ApiError, decoded
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS, NODES, PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched.model.objects.node_interruption import InterruptionKind, left_out_mark
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_kubernetes.cordon import cordon, has_cordon_mark, undo_cordon
from cedana_sched_kubernetes.node_notices import NodeNotice, notice_of
from cedana_sched_kubernetes.save_estimates import MetadataOfPod, PodResources, estimate_save
from cedana_sched_kubernetes.save_measurements import SaveMeasurements
from cedana_sched_kubernetes.save_planning import PodToSave, SavePlan, plan_saves, seconds_to_save
from cedana_sched_kubernetes.save_rates import SaveRates
from cedana_sched_kubernetes.saved_pod_eviction import SavedPodEviction

log = structlog.get_logger(__name__)

MARGIN_SECONDS: Final = 3.0
"""How long before the node's end everything must be committed: clocks differ, and the end may come early."""
READ_SECONDS: Final = 3.0
"""How long a plan waits for measurements; for those that it lacks then, it assumes."""
WITHDRAWN: Final = "the notice that the node ends was withdrawn"
_REASONS: Final = {
    InterruptionKind.TERMINATION: "NodeTermination",
    InterruptionKind.MAINTENANCE: "NodeMaintenance",
    InterruptionKind.SHUTDOWN: "NodeShutdown",
}
"""Reasons of signals, by kind of the notice."""
_SEPARATOR: Final = "="
"""Between the pod's uid and the notice's key in the uid of a signal; no other source of this adapter uses it."""
_EVICTED: Final = frozenset({Verdict.COMMITTED, Verdict.EVICT})


class NodeInterruptions:
    """Turns notices on nodes into reports, and releases into evictions. Run `run` as a task.

    Args:
        adapter: the name in records.
        cluster: the coordinator's shared clients and caches.
        nodes: all nodes.
        now: the current time.
    """

    def __init__(
        self,
        adapter: str,
        cluster: ClusterAccess,
        nodes: Informer[Node],
        *,
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._adapter = adapter
        self._cluster = cluster
        self._nodes = nodes
        self._now = now
        self._signals: dict[str, Signal] = {}
        """By uid of the pod: reported, and the pod neither ended nor cancelled."""
        self._evictions = SavedPodEviction()
        self._released: set[str] = set()
        """Uids of such pods whose signal was released."""
        self._explained: dict[str, str] = {}
        """By uid of the pod: key of the last notice of which an Event says that the pod is left out."""
        self._noticed: set[str] = set()
        """Names of nodes that end, or may end."""
        self._queue: WorkQueue[str] = WorkQueue("interruption of a node", self._review)
        self._readers: ReportFanout[Report] = ReportFanout()

    async def run(self) -> None:
        """Watch nodes and pods, forever."""
        pods = self._cluster.pods
        await pods.synced.wait()
        await self._nodes.synced.wait()
        self._nodes.subscribe(self._on_node_change)
        pods.subscribe(self._on_pod_change)
        try:
            for node in self._nodes:
                self._on_node_change(None, node)
            await self._queue.run()
        finally:
            self._nodes.unsubscribe(self._on_node_change)
            pods.unsubscribe(self._on_pod_change)

    def subscribed_queue(self, queue: asyncio.Queue[Report]) -> AbstractContextManager[asyncio.Queue[Report]]:
        """Return a block in which the queue gets the pending signals, then new reports."""
        return self._readers.subscribed_queue(map(Preempted, self._signals.values()), queue)

    async def on_released(self, release: Release) -> bool:
        """Evict the released pod, if this is the release of an interruption that was not withdrawn.

        Returns:
            Whether it is the release of an interruption.

        Raises:
            RetryableError: the API server is unreachable, or a budget does not allow the eviction now.
        """
        uid, separator, _ = release.signal_uid.partition(_SEPARATOR)
        if not separator:
            return False
        await self._nodes.synced.wait()
        if (signal := self._signals.get(uid)) is not None and uid not in self._released:
            self._released.add(uid)
            self._plan_again(signal)
        pod = self._cluster.pods_by_uid.unique_object_of(uid)
        if pod is None or not is_running(pod) or release.verdicts.get(uid) not in _EVICTED:
            return True
        node = self._nodes.get(pod.spec.node_name)
        notice = notice_of(node)
        if notice is not None and notice.kind is InterruptionKind.SHUTDOWN:
            return True  # the kubelet ends it
        if node is None or (notice is not None and notice.ends_node):
            await self._evict(pod, release.signal_uid)
        else:  # withdrawn while no reader was connected
            self._readers.publish(PreemptionCancelled(release.signal_uid, WITHDRAWN))
        return True

    def _plan_again(self, ended: Signal) -> None:
        """Plan the pods of the node that were left out: they may fit, now that this save is over."""
        self._queue.add(ended.victims[0].workload.node)

    async def _evict(self, pod: Pod, signal_uid: str) -> None:
        metadata = pod.metadata
        eviction = self._cluster.api.evict(metadata.name, metadata.namespace, uid=metadata.uid)
        if (refusal := await self._evictions.attempt(metadata, eviction, self._adapter)) is not None:
            self._readers.publish(PreemptionCancelled(signal_uid, refusal))

    def _on_node_change(self, before: Node | None, now: Node | None) -> None:
        node = now or before
        if node is None:
            return
        name = node.metadata.name
        if now is None:
            self._noticed.discard(name)
        elif (notice := notice_of(now)) is not None:
            if notice_of(before) != notice:
                self._noticed.add(name)
                self._queue.add(name)
        elif name in self._noticed or has_cordon_mark(now):
            self._noticed.discard(name)
            self._queue.add(name)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        if before is not None and (now is None or now.finished or now.metadata.uid != before.metadata.uid):
            signal = self._signals.pop(before.metadata.uid, None)
            if signal is not None and before.metadata.uid not in self._released:
                self._plan_again(signal)
            self._released.discard(before.metadata.uid)
            self._explained.pop(before.metadata.uid, None)
        has_started = now is not None and is_running(now) and (before is None or not is_running(before))
        if now is not None and has_started and now.spec.node_name in self._noticed:
            self._queue.add(now.spec.node_name)

    def is_left_out(self, pod: Pod) -> bool:
        """Return whether the pod is not saved from a shutdown of its node that is in progress."""
        notice = notice_of(self._nodes.get(pod.spec.node_name))
        return notice is not None and _is_marked_left_out(pod, notice)

    async def _review(self, name: str) -> None:
        """Cordon the node and save its pods; or cancel that.

        Raises:
            ApiError: the node cannot be cordoned or uncordoned, or a pod not be marked.
        """
        node = self._nodes.get(name)
        if node is None:
            return
        notice = notice_of(node)
        if notice is None or not notice.ends_node:
            self._cancel_signals(name)
            if notice is not None:
                self._record_risk(node, notice)
            await undo_cordon(self._cluster.api, node)
            return
        failures = [await self._cordon(node, notice), *await self._save_pods(node, notice)]
        if (failure := next(filter(None, failures), None)) is not None:
            raise failure

    async def _cordon(self, node: Node, notice: NodeNotice) -> ApiError | None:
        """Cordon the node; return why not: its pods are saved nevertheless."""
        try:
            await cordon(self._cluster.api, node, notice.key)
        except ApiError as error:
            log.warning("node is not cordoned", node=node.metadata.name, error=error.message)
            return error
        return None

    def _cancel_signals(self, name: str) -> None:
        for uid, signal in tuple(self._signals.items()):
            if signal.victims[0].workload.node == name:
                del self._signals[uid]
                if uid not in self._released or signal.reason == _REASONS[InterruptionKind.SHUTDOWN]:
                    self._readers.publish(PreemptionCancelled(signal.uid, WITHDRAWN))
                self._released.discard(uid)

    def _record_risk(self, node: Node, notice: NodeNotice) -> None:
        name = node.metadata.name
        message = f"{notice.source} is likely to need the machine soon: its pods would be saved then"
        self._cluster.events.record_event(ObjectEvent(NODES.reference(name, uid=name), "InterruptionLikely", message))

    async def _save_pods(self, node: Node, notice: NodeNotice) -> list[ApiError]:
        """Report the pods whose save fits, and record Events on the others.

        Returns:
            Why pods that the kubelet ends could not be marked as left out; each affects only its own pod.
        """
        name = node.metadata.name
        pods = {
            pod.metadata.uid: pod
            for pod in self._cluster.pods
            if pod.spec.node_name == name and is_running(pod) and _may_be_saved(pod, notice)
        }
        if not pods.keys() - self._signals.keys():
            return []
        saves = await self._estimate_saves(name, pods)
        plan = self._plan(notice, saves)
        for uid in plan.saved:
            if (signal := self._build_signal(pods[uid], notice)) is not None and uid not in self._signals:
                self._signals[uid] = signal
                self._readers.publish(Preempted(signal))
        for uid, reason in plan.left_out.items():
            if self._explained.get(uid) != notice.key:
                self._explained[uid] = notice.key
                self._record_left_out(pods[uid], notice, reason)
        log.info(
            "node is interrupted",
            node=name,
            source=notice.source,
            kind=notice.kind,
            ends_at=notice.ends_at,
            saved=len(plan.saved),
            left_out=len(plan.left_out),
            bytes_per_second=sorted({round(save.bytes_per_second) for save in saves.values()}),
        )
        if notice.kind is not InterruptionKind.SHUTDOWN:
            return []
        async with asyncio.TaskGroup() as group:  # a webhook that does not answer for one pod delays no other's end
            marks = [group.create_task(self._mark_left_out(pods[uid], notice), name=uid) for uid in plan.left_out]
        return [error for mark in marks if (error := mark.result()) is not None]

    async def _mark_left_out(self, pod: Pod, notice: NodeNotice) -> ApiError | None:
        """Mark the pod; return why that was not possible, so that its hook waits in vain."""
        try:
            await mark_left_out(self._cluster.api, pod, notice.key)
        except ApiError as error:
            metadata = pod.metadata
            log.warning("pod is not marked", namespace=metadata.namespace, pod=metadata.name, error=error.message)
            return error
        return None

    def _plan(self, notice: NodeNotice, saves: dict[str, PodToSave]) -> SavePlan:
        """Plan the pods that are not reported yet, in the time that the reported ones leave."""
        new = [save for uid, save in saves.items() if uid not in self._signals]
        if notice.ends_at is None:
            return plan_saves(new, None)
        in_progress = [save for uid, save in saves.items() if uid in self._signals and uid not in self._released]
        left = notice.ends_at - MARGIN_SECONDS - self._now().timestamp()
        return plan_saves(new, left - sum(map(seconds_to_save, in_progress)))

    async def _estimate_saves(self, node: str, pods: Mapping[str, Pod]) -> dict[str, PodToSave]:
        """Return the pods' saves; pods and saves are by uid."""
        resources: dict[str, PodResources] = {}
        measurements = SaveMeasurements(pods)
        await asyncio.gather(
            self._read_in_time(node, self._read_resources(node, pods, resources)),
            self._read_in_time(node, self._read_measurements(node, measurements)),
        )
        now, rates = self._now().timestamp(), SaveRates.from_saves(measurements.saves)
        return {
            uid: estimate_save(
                resources.get(uid) or PodResources(MetadataOfPod(uid)),
                measurements.snapshots_of(uid),
                rates.rate_for(pod.metadata.namespace),
                now,
            )
            for uid, pod in pods.items()
        }

    async def _read_in_time(self, node: str, reading: Awaitable[None]) -> None:
        """Await what is read for a plan, as far as the time allows: tenants decide how much there is, and how large."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                await reading
        except (ApiError, TimeoutError) as error:
            log.warning("saves are planned without all measurements", node=node, error=str(error))

    async def _read_resources(self, node: str, pods: Collection[str], resources: dict[str, PodResources]) -> None:
        """Add the resources of these pods of the node, by uid; those read before a failure count.

        Raises:
            ApiError: they cannot be read.
        """

        def add(body: msgspec.Raw) -> None:
            found = decoded("GET pods", bytes(body), PodResources)
            if found.metadata.uid in pods:
                resources[found.metadata.uid] = found

        await self._cluster.api.list_each(PODS, None, {"fieldSelector": f"spec.nodeName={node}"}, add)

    async def _read_measurements(self, node: str, measurements: SaveMeasurements) -> None:
        """Add the node's Checkpoints, which are read one after the other; those read before a failure count.

        Raises:
            ApiError: they cannot be read.
        """

        def add(body: msgspec.Raw) -> None:
            measurements.add(decoded("GET checkpoints", bytes(body), MeasuredCheckpoint))

        await self._cluster.api.list_each(CHECKPOINTS, None, {"labelSelector": f"{names.NODE}={node}"}, add)

    def _build_signal(self, pod: Pod, notice: NodeNotice) -> Signal | None:
        victim = build_victim(pod, self._cluster.policies)
        if victim is None:
            return None
        uid = f"{pod.metadata.uid}{_SEPARATOR}{notice.key}"
        not_after = None if notice.ends_at is None else notice.ends_at - MARGIN_SECONDS
        observed_at = self._now().timestamp()
        return Signal(uid, self._adapter, (victim,), _REASONS[notice.kind], observed_at, not_after=not_after)

    def _record_left_out(self, pod: Pod, notice: NodeNotice, reason: str) -> None:
        metadata = pod.metadata
        ends_at = "soon" if notice.ends_at is None else f"at {utc_datetime_of(notice.ends_at):%H:%M:%S} UTC"
        message = f"Node {pod.spec.node_name} ends {ends_at}, and the pod is not saved: it {reason}"
        reference = PODS.reference(metadata.name, metadata.namespace, metadata.uid)
        self._cluster.events.record_event(ObjectEvent(reference, "NotSavedInTime", message, warning=True))


def _may_be_saved(pod: Pod, notice: NodeNotice) -> bool:
    """Return whether the pod's program does not end already."""
    if notice.kind is not InterruptionKind.SHUTDOWN:
        return True
    return names.PRESTOP_TOKEN in pod.metadata.annotations and not _is_marked_left_out(pod, notice)


def _is_marked_left_out(pod: Pod, notice: NodeNotice) -> bool:
    return pod.metadata.annotations.get(names.NOT_PREEMPTED) == left_out_mark(notice.key)
