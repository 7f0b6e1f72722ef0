"""The configuration of the coordinator and of the agents, beside what every component has.

Names are camelCase, as in Kubernetes. Keys of the store are not in the files: they come from a Secret, as
`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. The node's name comes from the pod, as `NODE_NAME`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from cedana_sched.agent.budget import BASE_BYTES, DUMPS_AT_ONCE, DUMPS_MEMORY_BYTES, DUMPS_MEMORY_BYTES_EACH
from cedana_sched.kube.lease import LeaseTiming
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import Written
from cedana_sched.model.policy import StallSeconds
from cedana_sched.runtime.signs import STALL_SECONDS
from cedana_sched.service.configuration import PodsConfiguration, Port, ServingConfiguration
from cedana_sched.store.location import S3Location, StorageConfig
from cedana_sched.store.node_cache import CACHE_BYTES
from cedana_sched.store.sts import SessionSource

NODE_VARIABLE = "NODE_NAME"

Seconds = Annotated[float, Field(gt=0, le=3_600)]


class LeaseConfiguration(Written):
    """How soon another coordinator takes over; see `LeaseTiming`."""

    duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    renew_every: Seconds = 2.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.renew_every < self.renew_deadline < self.duration:
            raise ValueError("renewEvery must be less than renewDeadline, and that less than duration")
        return self

    def timing(self) -> LeaseTiming:
        return LeaseTiming(duration=self.duration, renew_deadline=self.renew_deadline, renew_every=self.renew_every)


class CredentialsConfiguration(Written):
    """To whom the coordinator gives credentials of a namespace's snapshots, and where they come from."""

    bucket: S3Location
    """Its keys come from the environment, and are in no other component's."""
    sessions: SessionSource = SessionSource()
    account: str
    """Name of the agents' ServiceAccount."""
    name: str
    """Of the Service that agents call, of the Secret with its certificate, of the ConfigMap with who signs that."""
    shared_namespaces: tuple[str, ...] = ()
    """As the agents have it."""
    collection_turns: str | None = None
    """Name of the ConfigMap that says which node collects which namespace; None: only namespaces of a node's own pods
    and orders are collected."""
    port: Port = 9444


class CoordinatorConfiguration(PodsConfiguration):
    """`coordinator.json`."""

    adapters: tuple[str, ...] = ()
    """Names under which they are registered, such as `kueue`."""
    adapter_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By name of the adapter, which says itself what may stand there."""
    deployment: str | None = None
    """Name of its own Deployment, on which Events about itself go."""
    sealing_secret: str | None = None
    """Name of the Secret with the keys that seal snapshots, which is made where there is none; None: an admin makes it,
    or nothing is sealed."""
    operations_port: Port = 8081
    """Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
    lease: LeaseConfiguration = LeaseConfiguration()
    credentials: CredentialsConfiguration | None = None
    """None: each agent has the keys of the whole store itself."""


class DumpsConfiguration(Written):
    """How much may be dumped at once on one node; see `DumpBudget`."""

    at_once: Annotated[int, Field(ge=1)] = DUMPS_AT_ONCE
    memory_bytes: Annotated[int, Field(ge=1)] = DUMPS_MEMORY_BYTES
    memory_bytes_each: Annotated[int, Field(ge=BASE_BYTES)] = DUMPS_MEMORY_BYTES_EACH
    """The limit of one, beside what it takes for each page of the workload."""


class AgentConfiguration(ServingConfiguration):
    """`agent.json`."""

    storage: StorageConfig
    shared_namespaces: tuple[str, ...] = ()
    """Names of namespaces, `*` for all: whoever has one of them, in any cluster, has what the store keeps under it. Of
    others it keeps apart what was saved in namespaces that had the name before, or have it elsewhere."""
    collection_turns: str | None = None
    """Name of the ConfigMap that says which node collects which namespace; None: there are no turns."""
    restart_containerd: bool = True
    """Restart containerd when its configuration was changed; otherwise the node is ready after the next restart."""
    containerd_socket: Path = Path("/run/containerd/containerd.sock")
    containerd_configuration: Path = Path("/etc/containerd/config.toml")
    programs: Path = Path("/opt/cedana-sched")
    state: Path = Path("/run/cedana-sched")
    data: Path = Path("/var/lib/cedana-sched")
    kubelet: Path = Path("/var/lib/kubelet")
    cache_bytes: Annotated[int, Field(ge=0)] = CACHE_BYTES
    """The most that copies of page fingerprints may take in `data`; 0 keeps none, and fetches them while frozen."""
    staging_reserve: Annotated[float | None, Field(ge=0, lt=1)] = None
    """Share of the filesystem of `data` that staged snapshots leave free; None: a little more than what the node's
    kubelet evicts pods for."""
    staging_namespace_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of what staged snapshots may take, that those of one namespace take together at most; a single one may take
    all."""
    dumps: DumpsConfiguration = DumpsConfiguration()
    stall_seconds: StallSeconds = STALL_SECONDS
    """A dump or restore that gives no sign of life for so long is ended, and tried again."""
    hold_port: Port = 10352
    """Of the node's `holds` pod: who else listens there is told of."""
    operations_port: Port = 10351
    """Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""

    @property
    def hold_listeners(self) -> Path:
        """The folder in which the keepers of this node's holds say which sockets are theirs."""
        return self.state / "holds" / "listeners"

    @property
    def hold_socket(self) -> Path:
        """Where the keeper of this node's holds calls."""
        return self.state / "holds" / "agent.sock"

    @staticmethod
    def node_name() -> str:
        """The node that this agent is on.

        Raises:
            UsageError: nobody has said.
        """
        name = os.environ.get(NODE_VARIABLE, "")
        if not name:
            remedy = "set it from the pod's spec.nodeName, as the chart does"
            raise UsageError(NODE_VARIABLE, name, "names no node", remedy=remedy)
        return name
