"""Kueue's kinds, reduced to the fields read here; msgspec skips all others.

Field names and conditions are those of `kueue.x-k8s.io/v1beta2` (Kueue 0.19, apis/kueue/v1beta2).
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import Condition, EnvVar, Metadata, cut_message, only_checkpoint_variable
from cedana_sched.kube.cached_metadata_keys import only_cached_keys
from cedana_sched.kube.resources import Resource

KUEUE_API_VERSION: Final = "kueue.x-k8s.io/v1beta2"

WORKLOADS = Resource(KUEUE_API_VERSION, "Workload", "workloads")
ADMISSION_CHECKS = Resource(KUEUE_API_VERSION, "AdmissionCheck", "admissionchecks", namespaced=False)
CLUSTER_QUEUES = Resource(KUEUE_API_VERSION, "ClusterQueue", "clusterqueues", namespaced=False)

# Conditions of a Workload.
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"

# States of a Workload's admission check.
PENDING: Final = "Pending"
READY: Final = "Ready"

ACTIVE: Final = "Active"
"""Condition of an AdmissionCheck: a ClusterQueue with an inactive check admits nothing."""


class _Kube(msgspec.Struct, frozen=True, rename="camel"):
    pass


class TemplateMetadata(_Kube, frozen=True):
    """`annotations` has only the keys read here."""

    annotations: dict[str, str] | None = None

    def __post_init__(self) -> None:
        """Drop all other annotations."""
        if self.annotations:
            msgspec.structs.force_setattr(self, "annotations", only_cached_keys(self.annotations))


class TemplateContainer(_Kube, frozen=True):
    """`env` has only the variable that names a workload, or is empty."""

    name: str = ""
    env: tuple[EnvVar, ...] | None = None

    def __post_init__(self) -> None:
        """Drop all other variables."""
        if self.env:
            msgspec.structs.force_setattr(self, "env", only_checkpoint_variable(self.env))


class TemplatePodSpec(_Kube, frozen=True):
    containers: tuple[TemplateContainer, ...] = ()


class PodTemplate(_Kube, frozen=True):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: TemplatePodSpec = TemplatePodSpec()


class PodSet(_Kube, frozen=True):
    """Pods of one kind of a Workload; a Job has one, called `main`."""

    name: str = "main"
    template: PodTemplate = PodTemplate()


class CheckState(_Kube, frozen=True):
    """State of an admission check of a Workload; `message` is truncated."""

    name: str
    state: str = PENDING
    message: str = ""

    def __post_init__(self) -> None:
        """Truncate the message."""
        cut_message(self, self.message)


class WorkloadSpec(_Kube, frozen=True):
    pod_sets: tuple[PodSet, ...] = ()


class WorkloadStatus(_Kube, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission_checks: tuple[CheckState, ...] = ()


class Workload(_Kube, frozen=True):
    """Kueue's record of what runs: queued, admitted, evicted, and admitted again, under one name."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def find_true_condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it is True."""
        return next((one for one in self.status.conditions if one.type == kind and one.status == "True"), None)


class ParametersReference(_Kube, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class AdmissionCheckSpec(_Kube, frozen=True):
    controller_name: str = ""
    parameters: ParametersReference | None = None


class AdmissionCheckStatus(_Kube, frozen=True):
    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(_Kube, frozen=True):
    metadata: Metadata
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()
