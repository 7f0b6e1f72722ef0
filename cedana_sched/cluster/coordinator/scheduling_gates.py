"""Lifts the scheduling gate of pods that wait for a snapshot in flight, once it is committed or has failed.

The webhook sets the gate at CREATE; only the coordinator lifts it, and restricts the pod to nodes that can restore the
snapshot. While gated, pods that are indistinguishable from their siblings get their identity. Some controllers replace
a deleted pod before it has ended: its replacement waits until an adapter has explained the deletion.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

import msgspec
import structlog

from cedana_sched.adapter.protected_pods import find_identity, identity_of, namespace_uid_of
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.sibling_snapshot_choice import SiblingSnapshotChoice, is_snapshot_choice_pending
from cedana_sched.kube.builtin_kinds import Metadata, Node, Pod, PodSpec
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiError, UnreadableError
from cedana_sched.kube.namespace_turns import NamespaceTurns
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.patch_preconditions import same_version_tests
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.response_decoding import Unreadable, UnreadableSink
from cedana_sched.kube.restore_node_affinity import cpus_that_can_continue, require_node_label
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, may_be_same_namespace
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import CONFIRMATION_SECONDS
from cedana_sched.model.records import Checkpoint, CheckpointStep, Record
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched.retrying import API_CALLS, Backoff

log = structlog.get_logger(__name__)

LARGEST_AFFINITY_BYTES: Final = 256 << 10
"""As JSON; an affinity that lists each node of a large cluster is smaller."""
EXPLANATION_SECONDS: Final = CONFIRMATION_SECONDS + 5.0
"""From a deletion until the agent waits for no explanation any more: a dead node's pod may be terminating for ever."""
OPENED_AT_ONCE: Final = 16
"""Maximum pods read whole at a time; they may be large."""
OPENED_OF_NAMESPACE: Final = 12
"""Likewise, of one namespace."""


class _GatedSpec(PodSpec, frozen=True):
    affinity: dict[str, Any] | None = None


class _GatedPod(Pod, frozen=True):
    """A pod, reduced to the fields that the patch needs."""

    spec: _GatedSpec = _GatedSpec()


class Gates:
    """The gates of all protected pods. Run `run` as a task; `on_records_saved` must receive everything that is saved.

    Args:
        pods: of all namespaces: gates in unserved namespaces are lifted at once.
    """

    def __init__(
        self,
        api: Api,
        pods: Informer[Pod],
        nodes: Informer[Node],
        checkpoints: CheckpointsById,
        unreadable: UnreadableSink = lambda resource, one: None,  # noqa: ARG005
        served: ServedNamespaces = EVERYWHERE,
    ) -> None:
        self._api = api
        self._served = served
        self._unreadable = unreadable
        self._pods = pods
        self._nodes = nodes
        self._checkpoints = checkpoints
        self._choice = SiblingSnapshotChoice(pods, checkpoints)
        self._in_flight: defaultdict[Identity, dict[str, str]] = defaultdict(dict)
        """Checkpoint uid to namespace uid."""
        self._taken_on: dict[Identity, Checkpoint] = {}
        """Newest checkpoint of an identity that is still tracked: its object may not be cached yet."""
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._due: set[tuple[str, str]] = set()
        """Pods that are queued, or not read since: each change of a pod may concern all gated ones of its id."""
        self._loaded = asyncio.Event()
        self._turns = NamespaceTurns(OPENED_AT_ONCE, OPENED_OF_NAMESPACE)

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record] = ()) -> None:
        """Track checkpoints that begin and end; the first call has all records."""
        self._loaded.set()
        for record in (*records, *forgotten):
            if not isinstance(record, Checkpoint):
                continue
            flying = self._in_flight[record.identity]
            if not record.is_terminal:
                flying[record.uid] = record.workload.namespace_uid
                continue
            flying.pop(record.uid, None)
            if record.step is CheckpointStep.READY:
                self._taken_on[record.identity] = record
            if not flying:
                del self._in_flight[record.identity]
            self._enqueue_gated_pods(record.identity)
        for record in forgotten:
            if isinstance(record, Checkpoint) and self._newest_is(record):
                del self._taken_on[record.identity]

    async def run(self) -> None:
        """Lift gates, forever."""
        await self._loaded.wait()  # checkpoints in flight are unknown before
        await self._checkpoints.synced.wait()  # choices are unknown before
        self._pods.subscribe(self._on_pod_changed)
        self._checkpoints.informer.subscribe(self._on_checkpoint_changed)
        try:
            for pod in self._pods:
                self._on_pod_changed(None, pod)
            async with asyncio.TaskGroup() as group:
                while True:
                    namespace, name = await self._queue.get()
                    group.create_task(self._open(namespace, name), name=f"gate of {namespace}/{name}")
        finally:
            self._pods.unsubscribe(self._on_pod_changed)
            self._checkpoints.informer.unsubscribe(self._on_checkpoint_changed)

    def _on_checkpoint_changed(self, before: KnownCheckpoint | None, now: KnownCheckpoint | None) -> None:
        if before is None and now is not None:  # it explains a deletion
            self._enqueue_gated_pods_of_id(now.metadata.namespace, now.spec.identity.id)

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        if before is not None and is_deletion_unexplained(before) and (now is None or not is_deletion_unexplained(now)):
            self._enqueue_gated_pods_of_id(before.metadata.namespace, before.metadata.annotations.get(names.ID, ""))
        if now is None or not is_gated(now):
            return
        is_news = before is None or find_identity(before) != find_identity(now)
        if is_news and (is_snapshot_choice_pending(now) or self._is_ready_to_open(now)):
            self._enqueue((now.metadata.namespace, now.metadata.name))

    def _enqueue(self, key: tuple[str, str]) -> None:
        if key not in self._due:
            self._due.add(key)
            self._queue.put_nowait(key)

    def _enqueue_gated_pods(self, identity: Identity) -> None:
        for pod in self._pods:
            if is_gated(pod) and find_identity(pod) == identity:
                self._enqueue((pod.metadata.namespace, pod.metadata.name))

    def _enqueue_gated_pods_of_id(self, namespace: str, identifier: str) -> None:
        for pod in self._pods:
            metadata = pod.metadata
            if is_gated(pod) and (metadata.namespace, metadata.annotations.get(names.ID)) == (namespace, identifier):
                self._enqueue((namespace, metadata.name))

    def _continues_unexplained_deletion(self, pod: Pod, identity: Identity) -> bool:
        """Whether the pod may continue the work of one that is being deleted, and may be saved or not."""
        for sibling in self._choice.siblings_of(pod):
            its_identity = find_identity(sibling)
            if its_identity is None or not is_deletion_unexplained(sibling):
                continue
            may_continue_it = its_identity == identity or is_snapshot_choice_pending(pod)
            if may_continue_it and not self._checkpoints.has_checkpoint_for_deletion(sibling, its_identity):
                return True
        return False

    def _schedule_opening(self, pod: Pod) -> None:
        """Look at the gate again once no deletion waits for an explanation any more."""
        key = (pod.metadata.namespace, pod.metadata.name)
        asyncio.get_running_loop().call_later(EXPLANATION_SECONDS, self._enqueue, key)

    def _newest_is(self, record: Checkpoint) -> bool:
        newest = self._taken_on.get(record.identity)
        return newest is not None and newest.uid == record.uid

    def _snapshot_node_of(self, identity: Identity, pod: Pod) -> str | None:
        """Return the node of its newest snapshot, from the tracked record, else from the archived object."""
        record = self._taken_on.get(identity)
        if record is not None and may_be_same_namespace(record.workload.namespace_uid, namespace_uid_of(pod)):
            return record.workload.node
        newest = self._checkpoints.newest_ready_checkpoint_of(identity)
        return newest.node if newest is not None else None

    def _is_ready_to_open(self, pod: Pod) -> bool:
        identity = find_identity(pod)
        is_served = self._served.includes(pod.metadata.namespace)
        return not is_served or identity is None or not self._is_in_flight(identity, pod)

    def _is_in_flight(self, identity: Identity, pod: Pod) -> bool:
        """Whether a checkpoint that the pod may restore is in flight."""
        mine = namespace_uid_of(pod)
        return any(may_be_same_namespace(uid, mine) for uid in self._in_flight.get(identity, {}).values())

    async def _open(self, namespace: str, name: str) -> None:
        backoff = Backoff(API_CALLS)
        while True:
            try:
                async with self._turns.turn(namespace):
                    self._due.discard((namespace, name))
                    pod = await self._api.get(PODS, name, namespace, into=_GatedPod)
                    if patch := self._patch(pod):
                        await self._api.patch(PODS, name, namespace, [*same_version_tests(pod.metadata), *patch])
            except AbsentError:
                return
            except UnreadableError as error:  # the watch's smaller shape was readable
                seen = self._pods.get(name, namespace)
                metadata = seen.metadata if seen is not None else Metadata(name, namespace)
                self._unreadable(PODS, Unreadable(metadata, error.message))
                return
            except ApiError as error:
                log.warning("gate not opened, trying again", pod=f"{namespace}/{name}", error=error.message)
                await asyncio.sleep(backoff.next_pause())
            except Exception:  # a defect of one pod must not block others; its next change enqueues it again
                log.exception("gate not opened", pod=f"{namespace}/{name}")
                return
            else:
                return

    def _patch(self, pod: _GatedPod) -> list[Object]:
        gates = [gate.name for gate in pod.spec.scheduling_gates]
        if names.RESTORE_GATE not in gates:
            return []
        if not self._served.includes(pod.metadata.namespace):
            return _gate_removal_patch(gates)
        patch: list[Object] = []
        try:
            identity = identity_of(pod)
        except (KeyError, UsageError) as error:  # another writer changed our webhook's annotations: the gate stays
            missing = f"metadata.annotations[{names.ID}] is missing"
            problem = missing if isinstance(error, KeyError) else str(error)
            return self._report_gate_kept(pod, problem)
        if self._continues_unexplained_deletion(pod, identity):
            self._schedule_opening(pod)
            return []
        taken_on = self._snapshot_node_of(identity, pod)
        if is_snapshot_choice_pending(pod):
            if (offered := self._choice.choose_checkpoint_for(pod)) is not None:
                identity, taken_on = offered.identity, offered.node
            patch += _identity_patch(identity)
        if self._is_in_flight(identity, pod):
            return patch
        if taken_on and (cpus := cpus_that_can_continue(taken_on, tuple(self._nodes))):
            spec: Object = {"affinity": pod.spec.affinity}
            require_node_label(spec, names.CPU_FEATURES, cpus)
            if len(msgspec.json.encode(spec)) > LARGEST_AFFINITY_BYTES:
                return self._report_gate_kept(pod, f"spec.affinity has more than {LARGEST_AFFINITY_BYTES} bytes")
            patch.append({"op": "add", "path": "/spec/affinity", "value": spec["affinity"]})
        return [*patch, *_gate_removal_patch(gates)]

    def _report_gate_kept(self, pod: Pod, problem: str) -> list[Object]:
        """Return no patch, and report why the gate stays."""
        self._unreadable(PODS, Unreadable(pod.metadata, f"its scheduling gate stays closed: {problem}"))
        return []


def _gate_removal_patch(gates: list[str]) -> list[Object]:
    """Return the patch that removes our gate."""
    path = f"/spec/schedulingGates/{gates.index(names.RESTORE_GATE)}"
    test: Object = {"op": "test", "path": f"{path}/name", "value": names.RESTORE_GATE}
    return [test, {"op": "remove", "path": path}]


def _identity_patch(identity: Identity) -> list[Object]:
    """Return the patch that sets the pod's identity. A pod without a snapshot keeps its number, and starts cold."""
    numbered = {names.INDEX: str(identity.index), names.RESTORE_IDENTITY: f"{identity.id}/{identity.index}"}
    return [
        {"op": "replace", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": value}
        for name, value in numbered.items()
    ]


def is_deletion_unexplained(pod: Pod) -> bool:
    """Whether a running pod is being deleted, and its preStop hook waits for an adapter to say why."""
    annotations, began_at = pod.metadata.annotations, pod.metadata.deletion_began_at
    return (
        began_at is not None
        and SERVER_TIME.now().timestamp() - began_at < EXPLANATION_SECONDS
        and pod.status.phase == "Running"
        and annotations.get(names.CONFIRM_DELETION) == names.CONFIRM_ALWAYS
        and annotations.get(names.NOT_PREEMPTED) != "true"
    )


def is_gated(pod: Pod) -> bool:
    """Whether our gate blocks its scheduling."""
    return any(gate.name == names.RESTORE_GATE for gate in pod.spec.scheduling_gates)
