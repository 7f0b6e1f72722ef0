"""All findings about one cluster, with the caller's rights, in the order in which an admin would mend them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from cedana_sched.cli.cluster_reader import ClusterReader, MissingPermissionError
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster import (
    adapters,
    admission_policies,
    agents,
    checkpoint_policies,
    installation,
    network_policies,
    node_ends,
    pod_security,
    protected_namespaces,
    runtimes,
    sealing,
    storage,
    unsavable_pods,
    webhook_calls,
    webhooks,
)
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.errors import CedanaSchedError

OF_INSTALLATION: Final[tuple[tuple[str, Callable[[ClusterReader, Installation], Awaitable[list[Finding]]]], ...]] = (
    (agents.CHECK, agents.examine),
    (pod_security.CHECK, pod_security.check_product_namespace),
    (pod_security.CHECK, pod_security.check_foreign_pods),
    (adapters.CHECK, adapters.check_enabled_adapters),
    (adapters.CHECK, adapters.check_armada_has_adapter),
    (node_ends.CHECK, node_ends.check_notices),
    (node_ends.CHECK, node_ends.check_shutdowns),
    (checkpoint_policies.CHECK, checkpoint_policies.check_selectors_count),
    (protected_namespaces.CHECK, protected_namespaces.examine),
    (sealing.CHECK, sealing.check_key_secret),
    (sealing.CHECK, sealing.check_unsealed_snapshots),
    (network_policies.CHECK, network_policies.examine),
    (webhooks.CHECK, webhooks.check_mutating_webhooks),
    (webhooks.CHECK, webhooks.check_validating_webhooks),
    (webhooks.CHECK, webhooks.check_ready_endpoints),
    (admission_policies.CHECK, admission_policies.examine),
)
"""Checks of what was installed, each with the name of its findings where it cannot look."""
OF_CLUSTER: Final[tuple[tuple[str, Callable[[ClusterReader], Awaitable[list[Finding]]]], ...]] = (
    (storage.CHECK, storage.examine),
    (checkpoint_policies.CHECK, checkpoint_policies.examine),
    (runtimes.CHECK, runtimes.examine),
    (pod_security.CHECK, pod_security.check_tenant_namespaces),
    (unsavable_pods.CHECK, unsavable_pods.examine),
)
"""Checks of the cluster around it."""


async def examine(kubeconfig: Path | None, namespace: str | None = None) -> list[Finding]:
    """What is found out; what this person may not read is a finding, too. For `namespace` see `webhook_calls`.

    Raises:
        UsageError: the kubeconfig cannot be used.
        ApiUnavailableError: the API server does not answer.
    """
    async with Api.open(None if kubeconfig is None else str(kubeconfig)) as api:
        return await examine_with(api, namespace)


async def examine_with(api: Api, namespace: str | None = None) -> list[Finding]:
    """Do the same with an open client.

    Raises:
        ApiUnavailableError: the API server does not answer.
    """
    reads, there, found = ClusterReader(api), tuple[Installation, ...](), list[Finding]()
    try:
        there = await installation.find_releases(reads)
        found += installation.check_releases(there)
    except CedanaSchedError as error:
        found += _unknown_findings(installation.CHECK, error)
    for check, look in OF_INSTALLATION:
        for one in there:
            found += await _findings_or_unknown(check, look(reads, one))
    for one in there:
        found += await _findings_or_unknown(webhook_calls.CHECK, webhook_calls.examine(reads, one, wanted=namespace))
    for check, look_around in OF_CLUSTER:
        found += await _findings_or_unknown(check, look_around(reads))
    return found + await adapters.examine(api)


async def _findings_or_unknown(check: str, look: Awaitable[list[Finding]]) -> list[Finding]:
    """Its findings; an error of ours that ends it is a finding, too."""
    try:
        return await look
    except CedanaSchedError as error:
        return _unknown_findings(check, error)


def _unknown_findings(check: str, error: CedanaSchedError) -> list[Finding]:
    """What stands for a check that could not look.

    Raises:
        ApiUnavailableError: the API server does not answer, which affects every check.
    """
    if isinstance(error, ApiUnavailableError):
        raise error
    message = f"unknown: {error.message}" if isinstance(error, MissingPermissionError) else error.message
    return [Finding(check, Level.WARN, message, error.remedy)]
