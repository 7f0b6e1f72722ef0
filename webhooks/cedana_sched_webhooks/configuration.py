"""What an installation says to the webhooks: one JSON file, which the chart writes from its values.

The keys are the fields below in camelCase; `webhooks/README.md` lists them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cedana_sched.model.objects.base import Written
from cedana_sched.service.configuration import PodsConfiguration, Port


class RestoreContainer(Written):
    """The init container that waits until a snapshot is staged."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    user: Annotated[int, Field(gt=0, le=2**31 - 1)] = 1001380016
    """Never root, so that Pod Security `restricted` admits it. And nobody else's: what the kernel counts per user of
    the node, inotify instances for one, would be shared with all pods that run as the same."""


class Asking(Written):
    """Which pods ask before their end, because their deletion may be a preemption that is told a moment later."""

    schedulers: frozenset[str] = frozenset()
    """Names of schedulers: their pods ask when they are evicted."""
    labels: frozenset[str] = frozenset()
    """Labels: pods that have one ask always."""


class CertificateFiles(Written):
    """Certificates that somebody else makes and renews, as cert-manager does.

    Nothing is patched then, so that no secret stands in the paths: ask for client certificates.
    """

    certificate: Path
    key: Path


class ClientCertificates(Written):
    """What the API server must prove itself with, where it is given one (its `--admission-control-config-file`)."""

    authorities: Path
    """PEM file of those who sign it; read at the start."""
    names: frozenset[str] = frozenset()
    """Common names that are an API server's; empty: whatever they have signed."""


class OwnCertificates(Written):
    """Certificates of our own authority, kept in a Secret of our namespace."""

    secret: str = "cedana-sched-webhooks"  # noqa: S105  # a Secret's name
    mutating_configuration: str = "cedana-sched"
    validating_configuration: str = "cedana-sched"
    """The webhook configurations whose `caBundle` and paths are kept; an empty name means there is none."""


class Configuration(PodsConfiguration):
    """One replica of the webhooks."""

    service: str = "cedana-sched-webhooks"
    """The Service by which the API server reaches us: the certificate is made out to it."""
    port: Port = 9443
    operations_port: Port = 8081
    """Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Between SIGTERM and the end of listening: as long as the cluster needs to send requests elsewhere."""
    agent_port: Port = 10352
    """Port of the node's `holds` pod, which forwards the kubelet's preStop calls to the agent."""
    restore: RestoreContainer
    kueue_users: frozenset[str] = frozenset({"system:serviceaccount:kueue-system:kueue-controller-manager"})
    """Whose suspensions of Jobs are held."""
    scheduler_users: frozenset[str] = frozenset()
    """Whose evictions of pods are held: schedulers that ask again, by the condition `DisruptionTarget`."""
    asking: Asking = Asking()
    adapters: tuple[str, ...] = ()
    """Schedulers that have admission calls of their own, by the names of their adapters."""
    adapter_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By name of the adapter, which says itself what may stand there."""
    shared_namespaces: frozenset[str] = frozenset()
    """Names of namespaces that are no more than names, as the agents keep their snapshots; `*`: all."""
    certificates: OwnCertificates = OwnCertificates()
    certificate_files: CertificateFiles | None = None
    """Where it is given, `certificates` is not used."""
    client_certificates: ClientCertificates | None = None
    """Where it is given, nobody without one is answered."""
