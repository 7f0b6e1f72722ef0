"""Pods that request protection, but that no webhook mutated: published, and protected as far as possible.

While no webhook answers, the API server creates pods without us (`failurePolicy: Ignore`). Every pod that a webhook
mutated or refused has our label, so this module checks pods without it, whatever their controller. A cluster may have
any number of them, mostly unprotected: only their metadata is watched, and the pod itself is read once, or once for all
pods of one template. The pod shows whether it requests protection: an id in a variable or an annotation, or a queue
that protects all of its pods.

Such a pod gets its identity here, and is then frozen and saved like any other one when it is preempted. Only a webhook
can set the rest, because a pod's spec is immutable afterwards: the preStop hook that holds its end, the longer grace
period, the gate and the init container of a restore. So the pod started cold.

A pod that a webhook refused is also read, once, if it is new: it may be the successor of a saved pod, with a template
changed since so that no snapshot can be restored in it.

The pod is not deleted for recreation: a Job counts a deleted pod as a failure, even one that never ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
import structlog

from cedana_sched.adapter.cluster_contract import OptingIn
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById, describe_missed_checkpoint
from cedana_sched.cluster.coordinator.missed_restores import is_recent_pod
from cedana_sched.cluster.coordinator.owner_references import warn_not_protected
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, PartialObject, Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, UnreadableError
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import PODS, UNFINISHED_PODS
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import REVISION
from cedana_sched.model.preemption import HeldObject, WorkloadRef
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_webhooks.admission_types import MIRROR
from cedana_sched_webhooks.identity import Replica, is_protection_requested, replica_of
from cedana_sched_webhooks.pod_mutations import LONGEST_REASON, WRITTEN_LATER
from cedana_sched_webhooks.replica_numbers import ReplicaNumbers

log = structlog.get_logger(__name__)

MOST_TEMPLATES: Final = 10_000
LONGEST_KIND: Final = 63
"""Characters of a controller's kind, which the pod's author controls."""
_OF_ONE_TEMPLATE: Final = frozenset(
    {
        ("apps/v1", "ReplicaSet"),
        ("v1", "ReplicationController"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "StatefulSet"),
        ("batch/v1", "Job"),
    }
)
"""Controllers whose pods differ only in names and indices."""
_JOB: Final = ("batch/v1", "Job")
_LEFT_ALONE: Final = frozenset({MIRROR, names.PRESTOP_TOKEN, names.MISSED_BY_WEBHOOK})
"""Annotations of mirror pods, and of mutated pods whose label was removed since."""

_Template = tuple[str, str, str]
"""Namespace, uid of the controller, revision. A pod's author may claim any uid, so it is valid per namespace only."""


class PodsMissedByWebhook:
    """Controller of such pods. Run `run` as a task.

    Args:
        api: reads the pods and marks them.
        snapshots: restorable and in flight.
        events: publishes pods that the webhooks refused.
        publish: publishes pods that no webhook mutated.
        served: namespaces whose pods are checked.
        policy_of: policy name for a pod with these annotations; None: none is named.
        queues: adapters of schedulers with queues that protect all of their pods.
        now: the time of day.
    """

    def __init__(
        self,
        api: Api,
        snapshots: CheckpointsById,
        events: EventRecorder,
        publish: Callable[[PublishEvent], None],
        served: ServedNamespaces,
        policy_of: Callable[[Mapping[str, str]], str | None],
        queues: Sequence[OptingIn] = (),
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._api = api
        self._snapshots = snapshots
        self._events = events
        self._publish_event = publish
        self._policy_of = policy_of
        self._queues = queues
        self._now = now
        self._siblings = ReplicaNumbers(api)
        self._strangers: dict[_Template, None] = {}
        """Templates whose pods request no protection."""
        self._unanswered: dict[str, PublishEvent] = {}
        """By pod: the event to publish once its marks show. Their write may succeed although its response is lost."""
        self._due_namespaces: set[str | None] = set()
        """Namespaces whose pods are to be checked again; None: all are."""
        self.unlabelled = Informer(_build_pod_watch(api, f"!{names.PROTECTED}", served), events.record_unreadable)
        self.refused = Informer(_build_pod_watch(api, f"{names.PROTECTED}=false", served), events.record_unreadable)
        self._looking = WorkQueue(
            "protection of a pod that no webhook has seen", self._check_pod, group_of=lambda key: key.partition("/")[0]
        )
        self.unlabelled.subscribe(self._on_unlabelled_pod_changed)
        self.refused.subscribe(self._on_refused_pod_changed)
        for scheduler in queues:
            scheduler.on_more_opted_in(self._look_again_soon)

    async def run(self) -> None:
        """Check pods, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.unlabelled.run(), name="pods without our label")
            group.create_task(self.refused.run(), name="pods that are not protected")
            group.create_task(self._looking.run(), name="pods that no webhook has seen")

    def _on_unlabelled_pod_changed(self, before: PartialObject | None, now: PartialObject | None) -> None:
        if now is None or before is not None or not self._is_to_be_checked(now.metadata):
            return
        if _template_key_of(now.metadata) not in self._strangers:
            self._looking.add(f"{now.metadata.namespace}/{now.metadata.name}")

    def _is_to_be_checked(self, metadata: Metadata) -> bool:
        is_left = not _LEFT_ALONE.isdisjoint(metadata.annotations)
        return not is_left and names.PROTECTED not in metadata.labels and metadata.deletion_timestamp is None

    def _look_again_soon(self, namespace: str | None) -> None:
        """Coalesce: queues are listed together."""
        if not self._due_namespaces:
            asyncio.get_running_loop().call_soon(self._look_again)
        self._due_namespaces.add(namespace)

    def _look_again(self) -> None:
        due, self._due_namespaces = self._due_namespaces, set()
        is_everywhere = None in due
        for template in tuple(self._strangers):
            if is_everywhere or template[0] in due:
                del self._strangers[template]
        for pod in self.unlabelled:
            if is_everywhere or pod.metadata.namespace in due:
                self._on_unlabelled_pod_changed(None, pod)

    def _on_refused_pod_changed(self, before: PartialObject | None, now: PartialObject | None) -> None:
        if (
            now is not None
            and before is None
            and (why := now.metadata.annotations.get(names.NOT_PROTECTED)) is not None
        ):
            warn_not_protected(self._events, now.metadata, why)
            if is_recent_pod(now.metadata, self._now()):
                self._looking.add(f"{now.metadata.namespace}/{now.metadata.name}")

    async def _check_pod(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        await self._publish_if_written(key)
        refused, unlabelled = self.refused.get(name, namespace), self.unlabelled.get(name, namespace)
        if (seen := unlabelled or refused) is None:
            return
        try:
            await (self._check_refused_pod if unlabelled is None else self._check_unlabeled_pod)(seen.metadata)
        except AbsentError:
            return
        except UnreadableError as error:
            self._events.record_unreadable(PODS, Unreadable(seen.metadata, error.message))

    async def _check_unlabeled_pod(self, seen: Metadata) -> None:
        template = _template_key_of(seen)
        if not self._is_to_be_checked(seen) or template in self._strangers:  # another pod of it was checked meanwhile
            return
        pod = await self._api.get(PODS, seen.name, seen.namespace, into=Pod)
        if pod.metadata.uid != seen.uid or not self._is_to_be_checked(pod.metadata):
            return
        body: Object = msgspec.to_builtins(pod)
        if (given := self._annotations_from_queue(body)) is None:
            self._remember_unprotected_template(template)
        else:
            await self._label_and_annotate(pod, body, given)

    async def _check_refused_pod(self, seen: Metadata) -> None:
        """Publish the snapshot that it could have restored, if it has an identity."""
        pod = await self._api.get(PODS, seen.name, seen.namespace, into=Pod)
        why = pod.metadata.annotations.get(names.NOT_PROTECTED)
        if pod.metadata.uid != seen.uid or why is None:
            return
        replica, _, among = await self._identify_replica(msgspec.to_builtins(pod), seen.namespace)
        if replica is None:
            return
        missed = self._snapshots.newest_checkpoint_missed_by(pod, replica.id, None if among else replica.index)
        if missed is not None:
            checkpoint = describe_missed_checkpoint(missed)
            text = f"Started {seen.name} without checkpoint {checkpoint}: it is not protected: {why}"
            self._publish_event(_build_event("ColdStart", text, pod, replica))

    def _remember_unprotected_template(self, template: _Template | None) -> None:
        if template is not None:
            self._strangers[template] = None
            if len(self._strangers) > MOST_TEMPLATES:
                del self._strangers[next(iter(self._strangers))]

    def _annotations_from_queue(self, body: Object) -> dict[str, str] | None:
        """Return the annotations from its queue; None if nothing requests protection."""
        given = next(filter(None, (dict(scheduler.opt_in_annotations(body)) for scheduler in self._queues)), {})
        if is_protection_requested(body):
            return {key: value for key, value in given.items() if key not in {names.ID, names.DERIVED_ID}}
        return given if names.ID in given else None

    async def _label_and_annotate(self, pod: Pod, body: Object, given: dict[str, str]) -> None:
        annotated = given | pod.metadata.annotations
        if names.QUEUE_POLICY in given:  # only the queue may set it
            annotated[names.QUEUE_POLICY] = given[names.QUEUE_POLICY]
        body["metadata"]["annotations"] = annotated
        replica, problem, among = await self._identify_replica(body, pod.metadata.namespace)
        if replica is None and not problem:
            return
        annotations: dict[str, str | None] = {names.NOT_PROTECTED: problem[:LONGEST_REASON]}
        if replica is not None:
            marks = {names.ID: replica.id, names.INDEX: str(replica.index), names.MISSED_BY_WEBHOOK: "true"}
            if (policy := self._policy_of(annotated)) is not None:
                marks[names.POLICY] = policy
            forged = {key: None for key in WRITTEN_LATER if key in pod.metadata.annotations}
            annotations = {**forged, **{key: annotated[key] for key in given}, **marks}
        labels = {names.PROTECTED: "true" if replica else "false"}
        patch: Object = {"metadata": {"labels": labels, "annotations": annotations}}
        if replica is None:  # the informer of refused pods publishes it
            await patch_same(self._api, PODS, pod.metadata, patch)
            return
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._unanswered[key] = self._create_missed_event(
            pod, replica, is_one_of_several=among, is_of_queue=names.ID in given
        )
        is_there = await patch_same(self._api, PODS, pod.metadata, patch)
        event = self._unanswered.pop(key)
        if is_there:
            self._publish(event)

    async def _publish_if_written(self, key: str) -> None:
        if (event := self._unanswered.get(key)) is None or event.workload is None:
            return
        workload = event.workload
        now = await self._api.find(PODS, workload.name, workload.namespace, into=PartialObject)
        del self._unanswered[key]
        if now is not None and now.metadata.uid == workload.uid and names.MISSED_BY_WEBHOOK in now.metadata.annotations:
            self._publish(event)

    def _publish(self, event: PublishEvent) -> None:
        log.warning("pod was not prepared by a webhook", kind=event.kind, reason=event.text)
        self._publish_event(event)

    async def _identify_replica(self, body: Object, namespace: str) -> tuple[Replica | None, str, bool]:
        """Return its identity, or why it has none; and whether it is one of several indistinguishable pods."""
        try:
            apart = await self._siblings.distinguish(body, namespace)
            return replica_of(body, apart.by_chance, apart.job), "", apart.by_chance is not None
        except UsageError as error:
            return None, str(error), False

    def _create_missed_event(
        self, pod: Pod, replica: Replica, *, is_one_of_several: bool, is_of_queue: bool
    ) -> PublishEvent:
        metadata = pod.metadata
        missed = self._snapshots.newest_checkpoint_missed_by(
            pod, replica.id, None if is_one_of_several else replica.index
        )
        text = _describe_missed_pod(metadata, missed, is_of_queue=is_of_queue)
        kind = "ColdStart" if missed else "MissedByWebhook"
        return _build_event(kind, text, pod, replica)


def _build_event(kind: str, text: str, pod: Pod, replica: Replica) -> PublishEvent:
    metadata = pod.metadata
    workload = WorkloadRef(metadata.uid, metadata.namespace, metadata.name, pod.spec.node_name)
    identity = Identity(metadata.namespace, replica.id, replica.index)
    return PublishEvent(kind, text, Severity.WARNING, identity, workload, held=_controller_reference_of(pod))


def _build_pod_watch(api: Api, labels: str, served: ServedNamespaces) -> Watch[PartialObject]:
    return Watch(api, PODS, PartialObject, labels=labels, fields=UNFINISHED_PODS, only_metadata=True, within=served)


def _describe_missed_pod(metadata: Metadata, missed: KnownCheckpoint | None, *, is_of_queue: bool) -> str:
    """Describe what happened to the pod and the remedy; `missed` is what it could have restored."""
    why = "no webhook answered" + (", or its queue did not protect its pods yet" if is_of_queue else "")
    start, aim = f"{metadata.name} was created while {why}", "have it prepared"
    if missed is not None:
        start, aim = (
            f"Started {metadata.name} without checkpoint {describe_missed_checkpoint(missed)}: {why}",
            "go back to the checkpoint",
        )
    saved = "it is saved where a webhook can refuse its eviction, but its deletion is not held"
    return f"{start}; {saved}. To {aim}, delete it{_describe_deletion_effect(metadata.controller_reference)}"


def _describe_deletion_effect(owner: OwnerReference | None) -> str:
    if owner is None:
        return " and create it again"
    counts = ", and counts a failure" if (owner.api_version, owner.kind) == _JOB else ""
    return f": its {owner.kind[:LONGEST_KIND]} creates another one{counts}"


def _template_key_of(metadata: Metadata) -> _Template | None:
    """Return None if pods of its controller may differ, or this one has an id annotation."""
    owner = metadata.controller_reference
    if owner is None or (owner.api_version, owner.kind) not in _OF_ONE_TEMPLATE or names.ID in metadata.annotations:
        return None
    return metadata.namespace, owner.uid, metadata.labels.get(REVISION, "")


def _controller_reference_of(pod: Pod) -> HeldObject | None:
    """Return a reference to its controller, such as the Job that its user inspects."""
    if (owner := pod.metadata.controller_reference) is None:
        return None
    return HeldObject(owner.api_version, owner.kind, pod.metadata.namespace, owner.name, owner.uid)
