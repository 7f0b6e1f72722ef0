"""Configuration of the coordinator and of the agents, besides that of every component.

Names are camelCase, as in Kubernetes. Keys of the store are not in the files: they come from a Secret, as
`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. The node's name comes from the pod, as `NODE_NAME`.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from cedana_sched.agent.dump_budget import BASE_BYTES, DUMPS_AT_ONCE, DUMPS_MEMORY_BYTES, DUMPS_MEMORY_BYTES_EACH
from cedana_sched.component.configuration import PodsConfiguration, Port, ServingConfiguration
from cedana_sched.kube.lease import LeaseTiming
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import UserWritten
from cedana_sched.model.policy import StallSeconds
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.store.page_fingerprint_cache import CACHE_BYTES
from cedana_sched.store.storage_config import S3Location, StorageConfig
from cedana_sched.store.sts import SessionSource

NODE_VARIABLE = "NODE_NAME"

Seconds = Annotated[float, Field(gt=0, le=3_600)]


class LeaseConfiguration(UserWritten):
    """How soon another coordinator takes over; see `LeaseTiming`."""

    duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    renew_every: Seconds = 2.0

    @model_validator(mode="after")
    def _check_durations(self) -> Self:
        if not self.renew_every < self.renew_deadline < self.duration:
            raise ValueError("renewEvery must be less than renewDeadline, and that less than duration")
        return self

    def timing(self) -> LeaseTiming:
        return LeaseTiming(duration=self.duration, renew_deadline=self.renew_deadline, renew_every=self.renew_every)


class CredentialsConfiguration(UserWritten):
    """Agents to which the coordinator issues credentials for namespaces' snapshots, and their source."""

    bucket: S3Location
    """Its keys come from the environment, and no other component has them."""
    sessions: SessionSource = SessionSource()
    account: str
    """Name of the agents' ServiceAccount."""
    name: str
    """Name of the Service that agents call, of the Secret with its certificate, and of the ConfigMap with its CA."""
    shared_namespaces: tuple[str, ...] = ()
    """Same value as the agents'."""
    collection_turns: str | None = None
    """Name of the ConfigMap of collection turns; None: only namespaces of a node's own pods and orders are
    collected."""
    port: Port = 9444


class CoordinatorConfiguration(PodsConfiguration):
    """`coordinator.json`."""

    adapters: tuple[str, ...] = ()
    """Registered adapter names, such as `kueue`."""
    adapter_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By adapter name; each adapter defines its own settings."""
    deployment: str | None = None
    """Name of its own Deployment, the target of Events about the coordinator."""
    sealing_secret: str | None = None
    """Name of the Secret with the keys that seal snapshots, created if absent; None: an admin creates it, or nothing is
    sealed."""
    operations_port: Port = 8081
    """Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
    lease: LeaseConfiguration = LeaseConfiguration()
    credentials: CredentialsConfiguration | None = None
    """None: each agent has the keys of the whole store."""


class DumpsConfiguration(UserWritten):
    """Limits of concurrent dumps on one node; see `DumpBudget`."""

    at_once: Annotated[int, Field(ge=1)] = DUMPS_AT_ONCE
    memory_bytes: Annotated[int, Field(ge=1)] = DUMPS_MEMORY_BYTES
    memory_bytes_each: Annotated[int, Field(ge=BASE_BYTES)] = DUMPS_MEMORY_BYTES_EACH
    """Limit of one dump, besides its memory for each page of the workload."""


AUTO: Final = "auto"
"""Detect the provider."""
METADATA_ADDRESSES: Final = frozenset(map(ip_address, ("fd00:ec2::254", "fd20:ce::254")))
"""Of AWS and GCP for IPv6; they are not link-local."""


def _check_metadata_url(url: str) -> str:
    """Raise ValueError unless the URL names a metadata server: it receives requests from every node, without TLS."""
    if not url:
        return url
    parts = urlsplit(url)
    try:
        address = ip_address(parts.hostname or "")
        _ = parts.port
    except ValueError:
        address = None
    is_address = address is not None and (address.is_link_local or address.is_loopback or address in METADATA_ADDRESSES)
    if parts.scheme != "http" or parts.username or parts.path.strip("/") or parts.query or not is_address:
        raise ValueError("must be http://ADDRESS[:PORT], with a link-local or loopback address")
    return url


class InterruptionsConfiguration(UserWritten):
    """From where an agent reads notices that its node is interrupted, such as those of spot capacity."""

    provider: Literal["none", "auto", "aws", "gcp", "azure"] = "none"
    """`auto` detects it; `none`: no request is sent."""
    metadata_url: Annotated[str, AfterValidator(_check_metadata_url)] = ""
    """Of the metadata server; empty: the link-local address of the providers."""
    node_shutdown: bool = False
    """Save pods when the kubelet shuts the node down; only where the coordinator has the adapter `kubernetes`."""


class AgentConfiguration(ServingConfiguration):
    """`agent.json`."""

    storage: StorageConfig
    shared_namespaces: tuple[str, ...] = ()
    """Names of namespaces, `*` for all, whose snapshots the store keys by name: every namespace of that name, in any
    cluster, shares them. For others the store separates the snapshots of namespaces that successively, or in other
    clusters, have the same name."""
    collection_turns: str | None = None
    """Name of the ConfigMap of collection turns; None: there are no turns."""
    restart_containerd: bool = True
    """Restart containerd after a change of its configuration; otherwise the node is ready after the next restart."""
    containerd_socket: Path = Path("/run/containerd/containerd.sock")
    containerd_configuration: Path = Path("/etc/containerd/config.toml")
    programs: Path = Path("/opt/cedana-sched")
    state: Path = Path("/run/cedana-sched")
    data: Path = Path("/var/lib/cedana-sched")
    kubelet: Path = Path("/var/lib/kubelet")
    cache_bytes: Annotated[int, Field(ge=0)] = CACHE_BYTES
    """Size limit of cached page fingerprints in `data`; 0 keeps none, and fetches them while the pod is frozen."""
    staging_reserve: Annotated[float | None, Field(ge=0, lt=1)] = None
    """Share of the filesystem of `data` that staged snapshots leave free; None: slightly more than the kubelet's
    eviction threshold."""
    staging_namespace_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Maximum share of the space for staged snapshots that those of one namespace take together; a single snapshot may
    take all of it."""
    dumps: DumpsConfiguration = DumpsConfiguration()
    interruptions: InterruptionsConfiguration = InterruptionsConfiguration()
    stall_seconds: StallSeconds = STALL_SECONDS
    """A dump or restore without progress for this long is killed and retried."""
    hold_port: Port = 10352
    """Port of the node's `prestop-proxy` pod; another listener on the port is reported."""
    operations_port: Port = 10351
    """Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""

    @property
    def hold_listeners_folder(self) -> Path:
        """The folder in which this node's `prestop-proxy` pods register their sockets."""
        return self.state / "holds" / "listeners"  # a wire: proxy and agent may differ in version during an upgrade

    @property
    def hold_socket(self) -> Path:
        """Socket that this node's `prestop-proxy` pod calls."""
        return self.state / "holds" / "agent.sock"

    @staticmethod
    def node_name() -> str:
        """Return the agent's node.

        Raises:
            UsageError: the variable is not set.
        """
        name = os.environ.get(NODE_VARIABLE, "")
        if not name:
            remedy = "set it from the pod's spec.nodeName, as the chart does"
            raise UsageError(NODE_VARIABLE, name, "names no node", remedy=remedy)
        return name
