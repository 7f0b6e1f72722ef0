"""A small world of Jobs, Workloads and pods, held in mirrors that tests fill by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from cedana_sched.kube.builtin_kinds import Condition, EnvVar, Metadata, OwnerReference, Pod, PodSpec, PodStatus
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import JOBS
from cedana_sched.kube.watching import Change, HasMetadata, Informer, Watch
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import POD_SET
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_kueue.managed_objects import ManagedObject, ManagedObjects, ObjectStatus, own_uid, owner_uid
from cedana_sched_kueue.objects import (
    CheckState,
    PodSet,
    PodTemplate,
    TemplateContainer,
    TemplateMetadata,
    TemplatePodSpec,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from cedana_sched_kueue.pod_workloads import PodWorkloads
from cedana_sched_kueue.preemptions import EvictionDetector, KueueReport

T = TypeVar("T", bound=HasMetadata)

NAMESPACE = "bio"
JOB_UID = "1a2b3c4d-0000-4000-8000-000000000001"
PREEMPTOR_UID = "feedbeef-0000-4000-8000-000000000009"
EVICTED_AT = "2026-11-21T15:00:00Z"
MESSAGE = (
    f"Preempted to accommodate a workload (UID: {PREEMPTOR_UID}, JobUID: job-9) due to reclamation within the cohort; "
    "preemptor path: /lab/ml; preemptee path: /lab/bio"
)


class _Silent(Watch[T], Generic[T]):
    """A watch that tells nothing: the test does."""

    def __init__(self) -> None:
        pass

    async def changes(self) -> AsyncIterator[Change[T]]:  # type: ignore[override]  # it never begins
        nothing: tuple[Change[T], ...] = ()
        for change in nothing:
            yield change


class HandMirror(Informer[T], Generic[T]):
    """Told by the test what there is."""

    def __init__(self) -> None:
        super().__init__(_Silent())

    def put(self, one: T) -> None:
        self._put(one)

    def drop(self, one: T) -> None:
        self._drop(one)


class OnePolicy:
    """Policies that go by their names: the deadline tells which one was asked for."""

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy(deadline_seconds=float(name)) if name else CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return self.policy_named(pod.metadata.annotations.get(names.POLICY), pod.metadata.namespace)


def owner(uid: str = JOB_UID, name: str = "md", kind: str = "Job", api_version: str = "batch/v1") -> OwnerReference:
    return OwnerReference(api_version, kind, name, uid, controller=True)


def template(annotations: dict[str, str] | None = None, **env: str) -> PodTemplate:
    variables = tuple(EnvVar(name, value) for name, value in env.items())
    return PodTemplate(
        TemplateMetadata(annotations=annotations), TemplatePodSpec((TemplateContainer("main", variables),))
    )


def job(
    *,
    uid: str = JOB_UID,
    suspend: bool = False,
    annotations: dict[str, str] | None = None,
    pods: PodTemplate | None = None,
    conditions: tuple[Condition, ...] = (),
) -> ManagedObject:
    metadata = Metadata(name="md", namespace=NAMESPACE, uid=uid, annotations=annotations or {})
    spec = {"suspend": suspend, "template": pods or template(CEDANA_CHECKPOINT="md")}
    return ManagedObject(metadata, msgspec.Raw(msgspec.json.encode(spec)), ObjectStatus(conditions))


def conditions(*true: str, since: str = EVICTED_AT, reason: str = "", message: str = "") -> tuple[Condition, ...]:
    return tuple(Condition(kind, "True", reason or kind, message, since) for kind in true)


def workload(
    held: tuple[Condition, ...] = (),
    *,
    name: str = "job-md-12345",
    uid: str = "workload-1",
    owned_by: OwnerReference | None = None,
    checks: tuple[CheckState, ...] = (),
    pod_sets: tuple[PodSet, ...] = (PodSet(),),
) -> Workload:
    metadata = Metadata(
        name=name,
        namespace=NAMESPACE,
        uid=uid,
        resource_version="7",
        owner_references=(owned_by or owner(),),
    )
    return Workload(metadata, WorkloadSpec(pod_sets), WorkloadStatus(held, checks))


def preempted(reason: str = "InCohortReclamation", *, since: str = EVICTED_AT, message: str = MESSAGE) -> Workload:
    """The Workload of `job`, as Kueue's scheduler leaves it."""
    held = (
        Condition("QuotaReserved", "True"),
        Condition("Admitted", "True"),
        Condition("Evicted", "True", "Preempted", message, since),
        Condition("Preempted", "True", reason, message, since),
    )
    return workload(held)


def admitted() -> Workload:
    held = (*conditions("QuotaReserved", "Admitted"), Condition("Evicted", "False", "QuotaReserved", "", EVICTED_AT))
    return workload(held)


def pod(index: int, *, phase: str = "Running", **annotations: str) -> Pod:
    """A protected pod of `job`."""
    metadata = Metadata(
        name=f"md-{index}",
        namespace=NAMESPACE,
        uid=f"pod-{index}",
        labels={names.PROTECTED: "true"},
        annotations={names.ID: "md", names.INDEX: str(index), **annotations},
        owner_references=(owner(),),
    )
    return Pod(metadata, PodSpec(node_name="node-1"), PodStatus(phase=phase, start_time="2026-11-21T14:00:00Z"))


def deleted(one: Pod, *, ago: float, now: float, grace: int = 630) -> Pod:
    """A pod that Kueue has admitted, and that was deleted so many seconds before `now`."""
    ends_at = datetime.fromtimestamp(now - ago + grace, tz=UTC).isoformat()
    metadata = msgspec.structs.replace(
        one.metadata,
        labels={**one.metadata.labels, POD_SET: "main"},
        annotations={**one.metadata.annotations, names.CONFIRM_DELETION: names.CONFIRM_ALWAYS},
        deletion_timestamp=ends_at,
        deletion_grace_period_seconds=grace,
    )
    return msgspec.structs.replace(one, metadata=metadata)


class World:
    """Mirrors, and the reports that come of them. `now` is its clock."""

    def __init__(self) -> None:
        self.jobs: HandMirror[ManagedObject] = HandMirror()
        self.workloads: HandMirror[Workload] = HandMirror()
        self.pods: HandMirror[Pod] = HandMirror()
        self.now = 1_000.0
        self.preemptions = self._watched()

    def _watched(self) -> EvictionDetector:
        return EvictionDetector(
            objects=ManagedObjects({JOBS: self.jobs}),
            pod_workloads=PodWorkloads(self.workloads, Index(owner_uid, self.workloads), self.pods),
            workloads=Index(own_uid, self.workloads),
            workloads_of=Index(owner_uid, self.workloads),
            pods_of=Index(owner_uid, self.pods),
            policies=OnePolicy(),
            clock=lambda: self.now,
        )

    def restart(self) -> None:
        """The coordinator begins anew over the same cluster."""
        self.preemptions = self._watched()

    def put(self, *objects: ManagedObject | Workload | Pod) -> None:
        for one in objects:
            match one:
                case ManagedObject():
                    self.jobs.put(one)
                case Workload():
                    self.workloads.put(one)
                case Pod():
                    self.pods.put(one)

    def review(self, job_uid: str = JOB_UID) -> tuple[KueueReport, ...]:
        return self.preemptions.reports_due(job_uid)


def changed(one: T, **fields: Any) -> T:
    """The same object with other metadata."""
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, **fields))  # type: ignore[type-var]  # all our kinds are structs
