"""Kubernetes' built-in kinds, with the fields that we read; msgspec skips all others.

Labels, annotations, owner references and variables, of which an object's author may write any number, are reduced on
decoding to those that are read. See `object_size_limits` for the rest.

Times stay RFC 3339 strings, as the API server writes them, because they are mostly compared for equality.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from cedana_sched.kube.cached_metadata_keys import only_cached_keys
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects.names import (
    CHECKPOINTABLE,
    CONFIRM_ALWAYS,
    CONFIRM_DELETION,
    CONFIRM_IF_EVICTED,
)

DISRUPTED: Final = "DisruptionTarget"
"""Condition of a pod that is being evicted."""
PREEMPTION = "PreemptionByScheduler"
"""Its reason if a scheduler evicts the pod."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an admin declares a node permanently gone."""


class _KubernetesStruct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class OwnerReference(_KubernetesStruct, frozen=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(_KubernetesStruct, frozen=True):
    """Metadata of an object, with `cached_keys` labels and annotations and the controller's owner reference only."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None

    def __post_init__(self) -> None:
        """Drop what no component reads."""
        for field, texts in (("labels", self.labels), ("annotations", self.annotations)):
            if (read := only_cached_keys(texts)) is not texts:
                msgspec.structs.force_setattr(self, field, read)
        if any(not owner.controller for owner in self.owner_references):
            controlling = tuple(owner for owner in self.owner_references if owner.controller)
            msgspec.structs.force_setattr(self, "owner_references", controlling)

    @property
    def deletion_deadline(self) -> float | None:
        """Return when a deleted pod ends at the latest, grace period included (epoch seconds); None if not deleted."""
        return datetime.fromisoformat(self.deletion_timestamp).timestamp() if self.deletion_timestamp else None

    @property
    def deletion_began_at(self) -> float | None:
        """Return when the deletion of a pod was requested (epoch seconds); None if it is not deleted."""
        deadline = self.deletion_deadline
        return None if deadline is None else deadline - (self.deletion_grace_period_seconds or 0)

    @property
    def controller_reference(self) -> OwnerReference | None:
        """Return the owner reference of the controller."""
        return next((owner for owner in self.owner_references if owner.controller), None)


LONGEST_MESSAGE = 2_048
"""Characters of a message shown to users; controllers write up to 32 KiB."""


def cut_message(read: msgspec.Struct, message: str) -> None:
    """Truncate the message of an object that is being decoded."""
    if len(message) > LONGEST_MESSAGE:
        msgspec.structs.force_setattr(read, "message", message[:LONGEST_MESSAGE])


class Condition(_KubernetesStruct, frozen=True):
    """A condition; its `message` is truncated."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    def __post_init__(self) -> None:
        """Truncate the message."""
        cut_message(self, self.message)


class EnvVar(_KubernetesStruct, frozen=True):
    """A variable; `value_from` is empty if the value is a literal."""

    name: str
    value: str = ""
    value_from: dict[str, Any] = {}


def only_checkpoint_variable(variables: tuple[EnvVar, ...]) -> tuple[EnvVar, ...]:
    """Return the one variable that is read of a container; of duplicates, the kubelet uses the last."""
    return tuple(one for one in variables if one.name == CHECKPOINT_VARIABLE)[-1:]


class Probe(_KubernetesStruct, frozen=True):
    termination_grace_period_seconds: int | None = None


class Container(_KubernetesStruct, frozen=True):
    """A container; `env` has at most the variable that names a workload."""

    name: str
    image: str = ""
    env: tuple[EnvVar, ...] = ()
    restart_policy: str | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None

    def __post_init__(self) -> None:
        """Drop what no component reads."""
        msgspec.structs.force_setattr(self, "env", only_checkpoint_variable(self.env))


class SchedulingGate(_KubernetesStruct, frozen=True):
    name: str


class PodSpec(_KubernetesStruct, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    termination_grace_period_seconds: int | None = None
    restart_policy: str = ""


def read_time(text: object) -> float | None:
    """Parse an RFC 3339 time to epoch seconds; None for anything else, where the object is usable without it."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, ArithmeticError):
        return None


START_ERROR: Final = "StartError"
"""containerd's reason for a container that failed to start, or whose start outlasted the kubelet's timeout."""


class ContainerStatus(_KubernetesStruct, frozen=True):
    name: str
    state: dict[str, dict[str, Any]] = {}
    restart_count: int = 0

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def terminated(self) -> bool:
        return "terminated" in self.state

    @property
    def has_run(self) -> bool:
        """Return whether the container ever ran: it neither waits for its first start, nor failed to start."""
        is_unstarted = "waiting" in self.state or self.state.get("terminated", {}).get("reason") == START_ERROR
        return self.restart_count > 0 or not is_unstarted

    @property
    def started_at(self) -> float | None:
        """Return when the running container started, in epoch seconds; None if none runs or the time is missing."""
        return read_time(self.state.get("running", {}).get("startedAt"))


def _is_ready(conditions: Iterable[Condition]) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


class PodStatus(_KubernetesStruct, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    start_time: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the time is invalid, so that the object is not decoded."""
        try:
            _ = self.started_at
        except ArithmeticError as error:
            raise ValueError(str(error)) from error

    @property
    def started_at(self) -> float | None:
        """Return when the pod started, in epoch seconds; None if it has not."""
        return datetime.fromisoformat(self.start_time).timestamp() if self.start_time else None


class Pod(_KubernetesStruct, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Return whether the pod's phase is terminal."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def ready(self) -> bool:
        """Return whether the pod is ready."""
        return _is_ready(self.status.conditions)

    @property
    def ended_by_itself(self) -> bool:
        """Return whether the pod is terminal and was not deleted."""
        return self.finished and self.metadata.deletion_timestamp is None

    @property
    def is_evicted(self) -> bool:
        """Return whether the scheduler has marked the pod as preempted."""
        conditions = (one for one in self.status.conditions if one.type == DISRUPTED and one.status == "True")
        return any(one.reason == PREEMPTION for one in conditions)

    @property
    def is_deletion_to_be_explained(self) -> bool:
        """Return whether its preStop hook waits, once it is deleted, until an adapter explains the deletion."""
        when = self.metadata.annotations.get(CONFIRM_DELETION)
        return when == CONFIRM_ALWAYS or (when == CONFIRM_IF_EVICTED and self.is_evicted)

    @property
    def checkpointable(self) -> Condition | None:
        """Return the condition that says whether the pod can be saved; None until it was looked at."""
        return next((one for one in self.status.conditions if one.type == CHECKPOINTABLE), None)


class Taint(_KubernetesStruct, frozen=True):
    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_KubernetesStruct, frozen=True):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(_KubernetesStruct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Node(_KubernetesStruct, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Return whether the node is ready."""
        return _is_ready(self.status.conditions)

    @property
    def evicts(self) -> bool:
        """Return whether a taint evicts pods that do not tolerate it."""
        return any(taint.effect == "NoExecute" for taint in self.spec.taints)

    @property
    def is_out_of_service(self) -> bool:
        """Return whether an admin has declared the node permanently gone."""
        return any(taint.key == OUT_OF_SERVICE for taint in self.spec.taints)


class ServiceReference(_KubernetesStruct, frozen=True):
    path: str = ""


class ClientConfig(_KubernetesStruct, frozen=True):
    """A webhook's client configuration; `service` is None for a URL, whose path is its author's."""

    ca_bundle: str = ""
    service: ServiceReference | None = None


class Webhook(_KubernetesStruct, frozen=True):
    name: str
    client_config: ClientConfig = ClientConfig()


class WebhookConfiguration(_KubernetesStruct, frozen=True):
    metadata: Metadata
    webhooks: tuple[Webhook, ...] = ()


class Secret(_KubernetesStruct, frozen=True):
    """A Secret; the values of `data` are base64."""

    metadata: Metadata
    data: dict[str, str] = {}


class PartialObject(_KubernetesStruct, frozen=True):
    """Any object, reduced to its metadata."""

    metadata: Metadata
