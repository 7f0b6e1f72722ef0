"""Whether our webhooks are registered, can prove who they are, and are there to be called.

Their paths are secret: no finding quotes one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import OURS, Installation
from cedana_sched.kube.builtin_kinds import Metadata, WebhookConfiguration
from cedana_sched.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource

CHECK: Final = "webhooks"
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
_OF_SERVICE: Final = "kubernetes.io/service-name"
_WRITTEN: Final = "the webhooks write both: see the log of their Deployment"


class _Conditions(msgspec.Struct, frozen=True):
    """`ready` is None if it is unknown, which counts as ready (Kubernetes, discovery/v1)."""

    ready: bool | None = None


class _Endpoint(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions = _Conditions()


class _Slice(msgspec.Struct, frozen=True):
    metadata: Metadata
    endpoints: tuple[_Endpoint, ...] | None = ()


async def check_mutating_webhooks(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Those that prepare pods, and hold evictions."""
    return await _check_registration(reads, one, MUTATING_WEBHOOKS, Level.FAIL)


async def check_validating_webhooks(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Those that refuse policies and storages that cannot be read."""
    return await _check_registration(reads, one, VALIDATING_WEBHOOKS, Level.WARN)


async def check_ready_endpoints(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Whether a replica is there to be called."""
    service = f"{one.name}-webhooks"
    slices = await reads.read_objects(ENDPOINT_SLICES, one.namespace, labels=f"{_OF_SERVICE}={service}", into=_Slice)
    endpoints = [each for part in slices for each in part.endpoints or ()]
    there = {address for each in endpoints if each.conditions.ready is not False for address in each.addresses}
    if not there:
        message = f"no endpoint of Service {service} is ready: evictions are not held"
        remedy = f"kubectl --namespace {one.namespace} describe deployment {service}"
        return [Finding(CHECK, Level.FAIL, message, remedy)]
    if len(there) == 1:
        message = f"one endpoint of Service {service} is ready: evictions are not held while it is replaced"
        return [Finding(CHECK, Level.WARN, message, "run two replicas (webhooks.replicas), on two nodes")]
    return [Finding(CHECK, Level.OK, f"{len(there)} endpoints of Service {service} are ready")]


async def _check_registration(
    reads: ClusterReader, one: Installation, resource: Resource, level: Level
) -> list[Finding]:
    found = await reads.read_objects(resource, labels=OURS, into=WebhookConfiguration)
    ours = [each for each in found if each.metadata.name == one.name]
    if not ours or not ours[0].webhooks:
        message = f"no {resource.kind} called {one.name} has webhooks"
        return [Finding(CHECK, level, message, "upgrade the release, which writes it again")]
    unknown = [each.name for each in ours[0].webhooks if not each.client_config.ca_bundle]
    services = {each.name: each.client_config.service for each in ours[0].webhooks}
    lost = [name for name, service in services.items() if service is None or service.path in {"", "/"}]
    problems: list[Finding] = []
    if unknown:
        message = f"{resource.kind}: no caBundle, so the API server trusts none of {summarize_names(unknown)}"
        problems.append(Finding(CHECK, level, message, _WRITTEN))
    if lost:
        message = f"{resource.kind}: no path leads to {summarize_names(lost)}"
        problems.append(Finding(CHECK, level, message, _WRITTEN))
    return problems or [
        Finding(CHECK, Level.OK, f"{resource.kind}: {summarize_names(each.name for each in ours[0].webhooks)}")
    ]
