"""Webhook configuration of an installation: one JSON file, which the chart writes from its values.

Keys are the fields below in camelCase; `webhooks/README.md` lists them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cedana_sched.component.configuration import PodsConfiguration, Port
from cedana_sched.model.objects.base import UserWritten


class RestoreContainer(UserWritten):
    """The init container that waits until a snapshot is staged."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    user: Annotated[int, Field(gt=0, le=2**31 - 1)] = 1001380016
    """Never root, so that Pod Security `restricted` admits it. Unique: all pods that run as the same user share the
    per-user kernel limits of a node, such as inotify instances."""


class DeletionConfirmation(UserWritten):
    """Pods whose preStop hook calls the agent, because their deletion may be a preemption reported a moment later."""

    schedulers: frozenset[str] = frozenset()
    """Scheduler names: their pods' hooks call when the pods are evicted."""
    labels: frozenset[str] = frozenset()
    """Label keys: the hooks of pods with one of these labels always call."""
    other_pods: bool = False
    """Whether the hooks of all other pods always call, too."""


class CertificateFiles(UserWritten):
    """Certificates that another program issues and renews, such as cert-manager.

    The webhook configurations are not patched then, so the paths contain no secret: require client certificates.
    """

    certificate: Path
    key: Path


class ClientCertificates(UserWritten):
    """Client certificates of the API server, if it has one (its `--admission-control-config-file`)."""

    authorities: Path
    """PEM file of the client CAs; read at start."""
    names: frozenset[str] = frozenset()
    """Common names of API servers; empty: any certificate of these CAs."""


class OwnCertificates(UserWritten):
    """Certificates of our own CA, stored in a Secret of our namespace."""

    secret: str = "cedana-sched-webhooks"  # noqa: S105  # a Secret's name
    mutating_configuration: str = "cedana-sched"
    validating_configuration: str = "cedana-sched"
    """Webhook configurations whose `caBundle` and paths we maintain; an empty name means none."""


class Configuration(PodsConfiguration):
    """One replica of the webhooks."""

    service: str = "cedana-sched-webhooks"
    """Service through which the API server calls; the certificate is issued for its name."""
    port: Port = 9443
    operations_port: Port = 8081
    """Plain HTTP: `/healthz`, `/readyz`, `/metrics`."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Between SIGTERM and closing the listener: the time that the cluster needs to route requests elsewhere."""
    agent_port: Port = 10352
    """Port of the node's `prestop-proxy` pod, which forwards the kubelet's preStop calls to the agent."""
    restore: RestoreContainer
    scheduler_users: frozenset[str] = frozenset()
    """Users whose evictions of pods are held: schedulers that retry and write the condition `DisruptionTarget`."""
    deletion_confirmation: Annotated[DeletionConfirmation, Field(alias="asking")] = DeletionConfirmation()
    adapters: tuple[str, ...] = ()
    """Adapter names of the schedulers that have admission calls of their own."""
    adapter_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By adapter name; each adapter defines its own settings."""
    shared_namespaces: frozenset[str] = frozenset()
    """Names of namespaces whose snapshots the agents key by name instead of uid; `*`: all."""
    certificates: OwnCertificates = OwnCertificates()
    certificate_files: CertificateFiles | None = None
    """If set, `certificates` is not used."""
    client_certificates: ClientCertificates | None = None
    """If set, only callers with a client certificate are answered."""
