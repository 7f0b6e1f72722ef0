"""Shapes of admission objects: types that msgspec decodes into dictionaries, skipping all other fields.

Any tenant can make the API server send us an object of some MiB, with `dryRun` any number of times: so only fields that
a handler reads are decoded. A JSON patch made from such a partial object applies to the whole object, as long as the
values that it replaces are decoded whole.

Every field may be null, and may be missing.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched_webhooks.admission import Shape

MIRROR: Final = register_cached_key("kubernetes.io/config.mirror")
"""Annotation of a mirror pod, which a kubelet made and the API server only shows."""


class Owner(TypedDict, total=False):
    apiVersion: str | None
    kind: str | None
    name: str | None
    uid: str | None
    controller: bool | None


class Metadata(TypedDict, total=False):
    uid: str | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    ownerReferences: list[Owner] | None


class Variable(TypedDict, total=False):
    name: str | None
    value: str | None
    valueFrom: dict[str, Any] | None


class Lifecycle(TypedDict, total=False):
    preStop: dict[str, Any] | None


class Resources(TypedDict, total=False):
    limits: dict[str, Any] | None
    requests: dict[str, Any] | None


class Named(TypedDict, total=False):
    name: str | None


class Container(TypedDict, total=False):
    name: str | None
    env: list[Variable] | None
    lifecycle: Lifecycle | None
    resources: Resources | None
    volumeMounts: list[Named] | None


class EphemeralContainer(TypedDict, total=False):
    name: str | None
    volumeMounts: list[Named] | None


class NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: dict[str, Any] | None


class Affinity(TypedDict, total=False):
    nodeAffinity: NodeAffinity | None


class OperatingSystem(TypedDict, total=False):
    name: str | None


class PodSpec(TypedDict, total=False):
    containers: list[Container] | None
    initContainers: list[dict[str, Any]] | None
    ephemeralContainers: list[EphemeralContainer] | None
    volumes: list[dict[str, Any]] | None
    schedulingGates: list[dict[str, Any]] | None
    securityContext: dict[str, Any] | None
    os: OperatingSystem | None
    hostUsers: bool | None
    affinity: Affinity | None
    nodeSelector: dict[str, str] | None
    nodeName: str | None
    schedulerName: str | None
    restartPolicy: str | None
    runtimeClassName: str | None
    terminationGracePeriodSeconds: int | None


class Pod(TypedDict, total=False):
    metadata: Metadata | None
    spec: PodSpec | None


# label names are no identifiers, so a class cannot have them as fields
MarkedLabels = TypedDict("MarkedLabels", {names.PROTECTED: str}, total=False)  # type: ignore[misc]
MarkedAnnotations = TypedDict("MarkedAnnotations", {names.RESTORE_IDENTITY: str, MIRROR: str}, total=False)  # type: ignore[misc]


class MarkedMetadata(TypedDict, total=False):
    labels: MarkedLabels | None
    annotations: MarkedAnnotations | None


class MarkedSpec(TypedDict, total=False):
    schedulingGates: list[Named] | None


class MarkedPod(TypedDict, total=False):
    """The marks that only our components may write."""

    metadata: MarkedMetadata | None
    spec: MarkedSpec | None


class NamedContainer(TypedDict, total=False):
    env: list[Variable] | None


class TemplateSpec(TypedDict, total=False):
    containers: list[NamedContainer] | None


class Template(TypedDict, total=False):
    """A pod template, reduced to the fields that identify its pods."""

    metadata: Metadata | None
    spec: TemplateSpec | None


class PodWithStatus(TypedDict, total=False):
    metadata: dict[str, Any]
    status: dict[str, Any] | None


class MetadataOfRunning(TypedDict, total=False):
    name: str | None
    namespace: str | None
    uid: str | None
    resourceVersion: str | None
    deletionTimestamp: str | None
    labels: MarkedLabels | None
    annotations: dict[str, str] | None


class Condition(TypedDict, total=False):
    type: str | None
    status: str | None


class StatusOfRunning(TypedDict, total=False):
    phase: str | None
    conditions: list[Condition] | None


class RunningPod(TypedDict, total=False):
    """The fields that show whether the pod is being evicted, and whether that is held."""

    metadata: MetadataOfRunning
    status: StatusOfRunning | None


def find_true_condition(pod: Object, kind: str) -> Object | None:
    """Return the condition of this type, if it is true."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == "True"), None)


POD = Shape(Pod, large=(MarkedPod, MarkedPod))
"""A pod at CREATE."""
UNMARKED_POD = Shape(Pod)
"""The same; a large pod is not decoded at all."""
STATUS = Shape(PodWithStatus, PodWithStatus, large=(RunningPod, RunningPod), largest_bytes=1 << 20)
"""A pod whose scheduler writes its status. The coordinator reads no larger ones either: see `object_size_limits`."""
