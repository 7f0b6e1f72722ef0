"""Reads a cluster with the user's own permissions: Volcano's configuration and Queues, and our components."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CONFIG_MAPS,
    MUTATING_WEBHOOKS,
    SERVICES,
)
from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched.model.objects import names
from cedana_sched_volcano.doctor.examine import CHECK, CONFIG_MAP, Installation, examine
from cedana_sched_volcano.doctor.queue_protection import check_queue_protection
from cedana_sched_volcano.objects import QUEUES

OURS: Final = {"labelSelector": "app.kubernetes.io/part-of=cedana-sched"}
COMPONENT: Final = register_cached_key("app.kubernetes.io/component")
EXTENDER: Final = "volcano-extender"


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class _Webhook(msgspec.Struct, frozen=True):
    name: str


class _WebhookConfiguration(msgspec.Struct, frozen=True):
    metadata: Metadata
    webhooks: tuple[_Webhook, ...] = ()


class _Port(msgspec.Struct, frozen=True):
    port: int
    name: str = ""


class _ServiceSpec(msgspec.Struct, frozen=True, rename="camel"):
    ports: tuple[_Port, ...] = ()
    cluster_ip: str = msgspec.field(name="clusterIP", default="")


class _Service(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _ServiceSpec


async def examine_cluster(api: Api) -> list[Finding]:
    """Return findings about each Volcano of a cluster.

    Raises:
        ApiError: the API server refused, or did not answer.
    """
    try:
        queues, _ = await api.list_all(QUEUES, into=dict[str, Any])
    except AbsentError:
        return [Finding(CHECK, Level.OK, "Volcano is not installed")]
    named_by_queues = any(names.POLICY in (one["metadata"].get("annotations") or {}) for one in queues)
    protected = list(check_queue_protection(queues, await _list_policy_names(api) if named_by_queues else None))
    installation = await _read_installation(api)
    named = {"fieldSelector": f"metadata.name={CONFIG_MAP}"}
    found, _ = await api.list_all(CONFIG_MAPS, None, named, into=_ConfigMap)
    if not found:
        message = f"no ConfigMap is called {CONFIG_MAP}: Volcano is not there, or was installed under another name"
        return [Finding(CHECK, Level.WARN, message, "look at its scheduler's configuration yourself"), *protected]
    examined = [finding for one in found for finding in examine(one.data, list[Object](queues), installation)]
    return [*examined, *protected]


async def _list_policy_names(api: Api) -> frozenset[str] | None:
    try:
        found, _ = await api.list_all(CHECKPOINT_POLICIES, into=PartialObject)
    except AbsentError:  # we are not installed; another finding reports that
        return None
    return frozenset(one.metadata.name for one in found)


async def _read_installation(api: Api) -> Installation:
    webhooks = await _list_webhook_names(api)
    services, _ = await api.list_all(SERVICES, None, OURS, into=_Service)
    urls = [url for one in services if one.metadata.labels.get(COMPONENT) == EXTENDER for url in _extender_urls_of(one)]
    return Installation(names.STATUS_WEBHOOK in webhooks, names.POD_WEBHOOK in webhooks, tuple(urls))


async def _list_webhook_names(api: Api) -> set[str]:
    configurations, _ = await api.list_all(MUTATING_WEBHOOKS, None, OURS, into=_WebhookConfiguration)
    return {webhook.name for one in configurations for webhook in one.webhooks}


def _extender_urls_of(service: _Service) -> list[str]:
    """Return all URLs of the Service, by Kubernetes DNS names."""
    name = f"{service.metadata.name}.{service.metadata.namespace}"
    hosts = [f"{name}.svc", name, f"{name}.svc.cluster.local", service.spec.cluster_ip]
    return [f"http://{host}:{port.port}" for port in service.spec.ports if port.name == "extender" for host in hosts]
