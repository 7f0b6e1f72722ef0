"""Pod indexing by controller labels: one table of label schemes.

A pod's place among the pods of one id is a role, which becomes part of the id, and an index. A controller recreates a
pod with the labels of its predecessor, and never runs two pods with the same labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cedana_sched.model.identity import read_index
from cedana_sched.model.objects import names

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
STATEFUL_NAME: Final = "statefulset.kubernetes.io/pod-name"
REVISION: Final = "controller-revision-hash"
"""Label of a pod of a StatefulSet or DaemonSet: the revision of its template. A Deployment has a ReplicaSet each."""
JOBSET: Final = "jobset.sigs.k8s.io"
KUBEFLOW: Final = "training.kubeflow.org"
LEADER_WORKER_SET: Final = "leaderworkerset.sigs.k8s.io"
RAY: Final = "ray.io"
VOLCANO: Final = "volcano.sh"
KUEUE: Final = "kueue.x-k8s.io"
POD_SET: Final = f"{KUEUE}/podset"
"""Label of every pod that Kueue admitted: the pods of one template, whatever their kind."""
ONLY_POD_SET: Final = "main"
"""Its value for kinds with one template."""

LONGEST_ID: Final = 63
DIGEST_DIGITS: Final = 8


class Scheme(msgspec.Struct, frozen=True):
    """The labels of one controller.

    `pods`: a label of all its pods; empty if its pods have another scheme's. `whole`: a label whose value names the
    object, on all pods below it, if objects between it and the pods control them; else empty. `role`: alternatives, of
    which the first whose labels are all present applies. `index`: alternatives, of which the first present label
    applies. `only`: a label and value that at most one pod of the role has at a time. `source`: where it is documented.
    """

    controller: str
    source: str
    pods: str = ""
    whole: str = ""
    role: tuple[tuple[str, ...], ...] = ()
    index: tuple[str, ...] = ()
    only: tuple[str, str] | None = None


SCHEMES: Final[tuple[Scheme, ...]] = (
    Scheme(
        "Job; an indexed one numbers its pods",
        "Kubernetes, Well-Known Labels, Annotations and Taints",
        pods="batch.kubernetes.io/job-name",
        index=(COMPLETION_INDEX,),
    ),
    Scheme(
        "JobSet",
        "kubernetes-sigs/jobset v0.12.0, api/jobset/v1alpha2/jobset_types.go",
        whole=f"{JOBSET}/jobset-name",
        role=((f"{JOBSET}/replicatedjob-name", f"{JOBSET}/job-index"), (f"{JOBSET}/job-global-index",)),
    ),
    Scheme(
        "LeaderWorkerSet",
        "kubernetes-sigs/lws v0.9.0, api/leaderworkerset/v1/leaderworkerset_types.go",
        pods=f"{LEADER_WORKER_SET}/name",
        whole=f"{LEADER_WORKER_SET}/name",
        role=((f"{LEADER_WORKER_SET}/group-index",),),
        index=(f"{LEADER_WORKER_SET}/worker-index",),
    ),
    Scheme(
        "Kubeflow's PyTorchJob, TFJob, MPIJob and their like",
        "kubeflow/training-operator v1.9.3, pkg/apis/kubeflow.org/v1/common_types.go",
        pods=f"{KUBEFLOW}/job-name",
        whole=f"{KUBEFLOW}/job-name",
        role=((f"{KUBEFLOW}/replica-type",), (f"{KUBEFLOW}/job-role",)),
        index=(f"{KUBEFLOW}/replica-index",),
    ),
    Scheme(
        "RayCluster, several hosts for a worker",
        "ray-project/kuberay, ray-operator/controllers/ray/utils/constant.go (RayMultihostIndexing)",
        pods=f"{RAY}/cluster",
        role=((f"{RAY}/group", f"{RAY}/worker-group-replica-index"), (f"{RAY}/group",)),
        index=(f"{RAY}/replica-host-index",),
        only=(f"{RAY}/node-type", "head"),
    ),
    Scheme(
        "StatefulSet",
        "Kubernetes, StatefulSets, Pod index label",
        pods=POD_INDEX,
        index=(POD_INDEX,),
    ),
    Scheme(
        "Volcano's Job",
        "volcano-sh/apis v1.14.1, pkg/apis/batch/v1alpha1/labels.go",
        pods=f"{VOLCANO}/job-name",
        role=((f"{VOLCANO}/task-spec",),),
        index=(f"{VOLCANO}/task-index",),
    ),
    Scheme(
        "Kueue's pod groups",
        "kubernetes-sigs/kueue v0.19.2, apis/kueue/v1beta2/topology_types.go",
        index=(f"{KUEUE}/pod-group-pod-index",),
    ),
    Scheme(
        "Armada; nothing numbers the pod of a job",
        "armadaproject/armada v0.22.7, internal/server/submit/conversion",
        pods="armada_job_id",
    ),
)


class PodPlace(msgspec.Struct, frozen=True):
    """A pod's place among the pods of its id. `index` is None if no label numbers the pod."""

    role: tuple[str, ...] = ()
    index: int | None = None
    is_only: bool = False
    """Whether it is the only pod of its role."""


def pod_place_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> PodPlace:
    """Derive a pod's place from its labels and annotations.

    Raises:
        UsageError: an index is not a number.
    """
    role = tuple(value for scheme in SCHEMES for value in _role_values_of(scheme, labels)) or _pod_set_of(labels)
    only = any(scheme.only is not None and labels.get(scheme.only[0]) == scheme.only[1] for scheme in SCHEMES)
    for field, key, text in _indexes_on_pod(labels, annotations):
        return PodPlace(role, read_index(f"metadata.{field}[{key}]", text), only)
    ordinal = labels.get(STATEFUL_NAME, "").rpartition("-")[2]
    return PodPlace(
        role, read_index(f"metadata.labels[{STATEFUL_NAME}]", ordinal) if ordinal.isdecimal() else None, only
    )


def wholes_of(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return what names the objects to which a pod belongs without being controlled by them: labels and values."""
    keys = (scheme.whole for scheme in SCHEMES if scheme.whole)
    return frozenset((key, name) for key in keys if (name := labels.get(key)))


def name_with_role(identifier: str, role: tuple[str, ...]) -> str:
    """Return the id of the pods of one role; an overlong id is truncated and ends in a digest of the whole."""
    whole = "-".join((identifier, *role))
    if len(whole) <= LONGEST_ID:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{whole[: LONGEST_ID - DIGEST_DIGITS - 1].rstrip('-._')}-{digest}"


def _role_values_of(scheme: Scheme, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the first alternative whose labels are all present."""
    found = (tuple(labels.get(key, "") for key in keys) for keys in scheme.role)
    return next((values for values in found if all(values)), ())


def _pod_set_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the pod's template among those of its object, as Kueue names it, for kinds without a scheme."""
    pod_set = labels.get(POD_SET, ONLY_POD_SET)
    return () if pod_set == ONLY_POD_SET else (pod_set,)


def _indexes_on_pod(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield every index on the pod as field, key and text, in order of precedence."""
    for scheme in SCHEMES:
        for key in scheme.index:
            if (text := labels.get(key)) is not None:
                yield "labels", key, text
            elif key == COMPLETION_INDEX and (text := annotations.get(key)) is not None:
                yield "annotations", key, text
    if (text := annotations.get(names.INDEX)) is not None:
        yield "annotations", names.INDEX, text
