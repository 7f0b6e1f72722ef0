"""Kubernetes' own kinds as far as we read them; msgspec skips everything else.

What an owner of an object may write any number of, and we read some of, is cut down to that when the object is read:
labels, annotations, owners, variables. See `bounds` for the rest.

Times stay the strings that the API server writes (RFC 3339), because they are mostly compared for being the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from cedana_sched.kube.kept import only_kept
from cedana_sched.model.identity import CHECKPOINT_VARIABLE

PREEMPTION = "PreemptionByScheduler"
"""Reason of the condition `DisruptionTarget`."""


class _Kube(msgspec.Struct, frozen=True, rename="camel"):
    pass


class OwnerReference(_Kube, frozen=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(_Kube, frozen=True):
    """`labels` and `annotations` are those that somebody reads (see `kept`), `owner_references` the controller's."""

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
        """Let go what nobody reads."""
        for field, texts in (("labels", self.labels), ("annotations", self.annotations)):
            if (read := only_kept(texts)) is not texts:
                msgspec.structs.force_setattr(self, field, read)
        if any(not owner.controller for owner in self.owner_references):
            controlling = tuple(owner for owner in self.owner_references if owner.controller)
            msgspec.structs.force_setattr(self, "owner_references", controlling)

    @property
    def ends_at(self) -> float | None:
        """When a pod that is deleted ends, whatever holds (epoch seconds; its grace is in it); None: not deleted."""
        return datetime.fromisoformat(self.deletion_timestamp).timestamp() if self.deletion_timestamp else None

    @property
    def owner(self) -> OwnerReference | None:
        """The object that controls this one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


LONGEST_MESSAGE = 2_048
"""Characters of what people are told; controllers write up to 32 KiB."""


def cut_message(read: msgspec.Struct, message: str) -> None:
    """Keep the beginning of the message of an object that is just being read."""
    if len(message) > LONGEST_MESSAGE:
        msgspec.structs.force_setattr(read, "message", message[:LONGEST_MESSAGE])


class Condition(_Kube, frozen=True):
    """Of `message` there is the beginning."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    def __post_init__(self) -> None:
        """Cut what nobody reads."""
        cut_message(self, self.message)


class EnvVar(_Kube, frozen=True):
    """`value_from` is empty where the value is written out."""

    name: str
    value: str = ""
    value_from: dict[str, Any] = {}


def only_checkpoint_variable(variables: tuple[EnvVar, ...]) -> tuple[EnvVar, ...]:
    """The one that is read of a container; of two of that name the kubelet takes the last."""
    return tuple(one for one in variables if one.name == CHECKPOINT_VARIABLE)[-1:]


class Probe(_Kube, frozen=True):
    termination_grace_period_seconds: int | None = None


class Container(_Kube, frozen=True):
    """`env` is the variable that names a workload, or empty."""

    name: str
    image: str = ""
    env: tuple[EnvVar, ...] = ()
    restart_policy: str | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None

    def __post_init__(self) -> None:
        """Let go what nobody reads."""
        msgspec.structs.force_setattr(self, "env", only_checkpoint_variable(self.env))


class SchedulingGate(_Kube, frozen=True):
    name: str


class PodSpec(_Kube, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    termination_grace_period_seconds: int | None = None
    restart_policy: str = ""


def read_time(text: object) -> float | None:
    """A time of RFC 3339 in seconds since the epoch; None for anything else, where an object is of use without it."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, ArithmeticError):
        return None


START_ERROR: Final = "StartError"
"""containerd's reason of a container that it could not start, or whose start its kubelet did not wait for any more."""


class ContainerStatus(_Kube, frozen=True):
    name: str
    state: dict[str, dict[str, Any]] = {}
    restart_count: int = 0

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def has_run(self) -> bool:
        """Whether its program ever ran: it neither waits for its first start, nor could containerd not start it."""
        is_unstarted = "waiting" in self.state or self.state.get("terminated", {}).get("reason") == START_ERROR
        return self.restart_count > 0 or not is_unstarted

    @property
    def started_at(self) -> float | None:
        """The start of what runs, in seconds since the epoch; None: nothing runs, or no time stands there."""
        return read_time(self.state.get("running", {}).get("startedAt"))


def _is_ready(conditions: Iterable[Condition]) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


class PodStatus(_Kube, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    start_time: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the time is none, so that the object is not read."""
        try:
            _ = self.started_at
        except ArithmeticError as error:
            raise ValueError(str(error)) from error

    @property
    def started_at(self) -> float | None:
        """Its start, in seconds since the epoch; None: it has not started."""
        return datetime.fromisoformat(self.start_time).timestamp() if self.start_time else None


class Pod(_Kube, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Whether its containers have ended for good."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def ready(self) -> bool:
        """Whether it may be called."""
        return _is_ready(self.status.conditions)

    @property
    def ended_by_itself(self) -> bool:
        """Whether it has finished, and nobody has deleted it."""
        return self.finished and self.metadata.deletion_timestamp is None

    @property
    def is_evicted(self) -> bool:
        """Whether its scheduler has written that it is preempted, as kube-scheduler and Volcano do."""
        conditions = (one for one in self.status.conditions if one.type == "DisruptionTarget" and one.status == "True")
        return any(one.reason == PREEMPTION for one in conditions)


class Taint(_Kube, frozen=True):
    key: str


class NodeSpec(_Kube, frozen=True):
    taints: tuple[Taint, ...] = ()


class NodeStatus(_Kube, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Node(_Kube, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet is well."""
        return _is_ready(self.status.conditions)


class ServiceReference(_Kube, frozen=True):
    path: str = ""


class ClientConfig(_Kube, frozen=True):
    """`service` is None where a URL is called, whose path is its writer's."""

    ca_bundle: str = ""
    service: ServiceReference | None = None


class Webhook(_Kube, frozen=True):
    name: str
    client_config: ClientConfig = ClientConfig()


class WebhookConfiguration(_Kube, frozen=True):
    metadata: Metadata
    webhooks: tuple[Webhook, ...] = ()


class PartialObject(_Kube, frozen=True):
    """Any object, of which only the metadata matters."""

    metadata: Metadata
