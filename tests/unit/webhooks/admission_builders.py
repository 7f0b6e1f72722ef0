"""Pods, Jobs, and what the webhooks know, for their tests; and a JSON patch applied as the API server does."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec, CheckpointStatus
from cedana_sched.kube.own_kinds.cached_hold import HeldObject, HoldSpec, HoldStatus, PreemptionHold, VictimStatus
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef, SnapshotName
from cedana_sched.kube.watching import HasMetadata
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import CheckpointStep, HoldStep, Phase
from cedana_sched_kueue.webhooks import KueueWebhooks
from cedana_sched_webhooks.admission import Request, UserInfo
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.configuration import Configuration, RestoreContainer
from cedana_sched_webhooks.schedulers import Handler, ReplicaAccess

T = TypeVar("T", bound=HasMetadata)

KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"


class Shelf(Generic[T]):
    """Objects by namespace and name, as a mirror has them."""

    def __init__(self, objects: Iterable[T] = ()) -> None:
        self._objects = {(one.metadata.namespace, one.metadata.name): one for one in objects}

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())


def configuration(**fields: Any) -> Configuration:
    image = RestoreContainer(image="cedana-sched/agent:test")
    return Configuration(**{"namespace": "cedana-system", "restore": image, **fields})


def knowledge(
    *,
    checkpoints: Iterable[Checkpoint] = (),
    holds: Iterable[PreemptionHold] = (),
    namespaces: Iterable[PartialObject] = (),
    nodes: Iterable[PartialObject] = (),
    policies: Iterable[CachedPolicy] = (),
) -> AdmissionCaches:
    known = AdmissionCaches(Shelf(namespaces), Shelf(nodes), Shelf(policies))
    for checkpoint in checkpoints:
        known.on_checkpoint_change(None, checkpoint)
    for hold in holds:
        known.on_hold_change(None, hold)
    return known


def kueue_handlers(known: AdmissionCaches) -> Mapping[str, Handler]:
    """What Kueue's adapter answers beside our own handlers."""
    return KueueWebhooks.connect(ReplicaAccess(cast("Api", None), known)).handlers()


def checkpoint(
    generation: int | None = 1,
    *,
    identifier: str = "sim",
    index: int = 0,
    namespace: str = "lab",
    step: CheckpointStep = CheckpointStep.READY,
    node: str = "node1",
    labels: dict[str, str] | None = None,
    deleted: bool = False,
) -> Checkpoint:
    phases = {CheckpointStep.READY: Phase.READY, CheckpointStep.FAILED: Phase.FAILED}
    name = f"{identifier}-{index}-{generation}-{step.lower()}"
    return Checkpoint(
        Metadata(
            name=name,
            namespace=namespace,
            labels=labels or {},
            deletion_timestamp="2026-05-01T12:00:00Z" if deleted else None,
        ),
        CheckpointSpec(IdentitySpec(identifier, index), PodRef(node_name=node)),
        CheckpointStatus(
            phases.get(step, Phase.IN_PROGRESS),
            step,
            SnapshotName(generation, identifier) if generation is not None else None,
        ),
    )


def hold(
    name: str = "hold-1",
    *,
    uid: str = "job-uid",
    step: HoldStep = HoldStep.HOLDING,
    deadline: str | None = "2026-05-01T12:10:00.000000Z",
    created: str = "2026-05-01T12:00:00Z",
    reason: str = "Preempted",
    verdicts: tuple[Verdict, ...] = (),
) -> PreemptionHold:
    return PreemptionHold(
        Metadata(name=name, namespace="lab", creation_timestamp=created, resource_version="7"),
        HoldSpec(reason, HeldObject(uid)),
        HoldStatus(step, deadline, victims=tuple(VictimStatus(f"pod-{i}", one) for i, one in enumerate(verdicts))),
    )


def node(name: str, *, cpu: str, features: Iterable[str] = (), kernel: tuple[int, int] = (6, 12)) -> PartialObject:
    facts = Compatibility("x86_64", frozenset(features), kernel)
    annotations = {names.NODE_FACTS: msgspec.json.encode(facts).decode()}
    return PartialObject(
        Metadata(name=name, labels={names.CPU_FEATURES: cpu, names.NODE_PREPARED: "true"}, annotations=annotations)
    )


def namespace(name: str = "lab", **labels: str) -> PartialObject:
    return PartialObject(Metadata(name=name, labels=labels))


def policy(name: str, **spec: Any) -> CachedPolicy:
    return CachedPolicy(Metadata(name=name), spec)


def pod(
    identifier: str | None = "sim",
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    container: dict[str, Any] = {"name": "main", "image": "sim:1", "resources": {"requests": {"cpu": "1"}}}
    if identifier is not None:
        container["env"] = [{"name": CHECKPOINT_VARIABLE, "value": identifier}]
    metadata: Object = {"generateName": "sim-"}
    metadata |= {"annotations": annotations} if annotations is not None else {}
    metadata |= {"labels": labels} if labels is not None else {}
    filled = {"containers": [container], "terminationGracePeriodSeconds": 30, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": filled | spec}


def creation(body: Object, namespace: str = "lab") -> Request:
    return Request(uid="request", namespace=namespace, object=body)


def suspension(
    *,
    template: Object | None = None,
    user: str = KUEUE,
    annotations: dict[str, str] | None = None,
    started_at: str | None = "2026-05-01T11:00:00Z",
    active: int = 4,
    dry_run: bool = False,
) -> Request:
    """A Job that Kueue wants to suspend."""
    metadata = {"name": "sim", "namespace": "lab", "uid": "job-uid", "annotations": annotations or {}}
    status = {"startTime": started_at, "active": active}
    job: Object = {"metadata": metadata, "spec": {"suspend": True, "template": template or pod()}, "status": status}
    before = copy.deepcopy(job)
    before["spec"]["suspend"] = False
    return Request("request", "lab", "sim", UserInfo(user), job, before, dry_run)
