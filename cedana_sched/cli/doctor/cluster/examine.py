"""All checks of a cluster, with the user's permissions, in the order in which an admin would resolve findings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from cedana_sched.cli.doctor.cluster import (
    adapters,
    agents,
    checkpoint_policies,
    installation,
    network_policies,
    pod_security,
    policies,
    runtimes,
    sealing,
    storage,
    webhooks,
)
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.reads import Reads
from cedana_sched.cli.doctor.findings import Finding, Level
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.errors import CedanaSchedError

OF_INSTALLATION: Final[tuple[tuple[str, Callable[[Reads, Installation], Awaitable[list[Finding]]]], ...]] = (
    (agents.CHECK, agents.examine),
    (pod_security.CHECK, pod_security.of_installation),
    (pod_security.CHECK, pod_security.strangers),
    (adapters.CHECK, adapters.followed),
    (adapters.CHECK, adapters.armada),
    (sealing.CHECK, sealing.key),
    (sealing.CHECK, sealing.unsealed),
    (network_policies.CHECK, network_policies.examine),
    (webhooks.CHECK, webhooks.mutating),
    (webhooks.CHECK, webhooks.validating),
    (webhooks.CHECK, webhooks.answering),
    (policies.CHECK, policies.examine),
)
"""Checks of each installation, by the name of the finding if the check fails."""
OF_CLUSTER: Final[tuple[tuple[str, Callable[[Reads], Awaitable[list[Finding]]]], ...]] = (
    (storage.CHECK, storage.examine),
    (checkpoint_policies.CHECK, checkpoint_policies.examine),
    (runtimes.CHECK, runtimes.examine),
    (pod_security.CHECK, pod_security.of_tenants),
)
"""Checks of the cluster itself, by the name of the finding if the check fails."""


async def examine(kubeconfig: Path | None) -> list[Finding]:
    """Run all checks of a cluster; a missing permission is a finding too.

    Raises:
        UsageError: the kubeconfig cannot be used.
        ApiUnavailableError: the API server is not reachable.
    """
    async with Api.open(None if kubeconfig is None else str(kubeconfig)) as api:
        reads, there, found = Reads(api), tuple[Installation, ...](), list[Finding]()
        try:
            there = await installation.locate(reads)
            found += installation.judge(there)
        except CedanaSchedError as error:
            found += _unknown(installation.CHECK, error)
        for check, look in OF_INSTALLATION:
            for one in there:
                found += await _guarded(check, look(reads, one))
        for check, look_around in OF_CLUSTER:
            found += await _guarded(check, look_around(reads))
        return found + await adapters.examine(api)


async def _guarded(check: str, look: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check; a `CedanaSchedError` that ends the check is a finding too."""
    try:
        return await look
    except CedanaSchedError as error:
        return _unknown(check, error)


def _unknown(check: str, error: CedanaSchedError) -> list[Finding]:
    """Return the finding for a check that failed.

    Raises:
        ApiUnavailableError: the API server is not reachable, which affects every check.
    """
    if isinstance(error, ApiUnavailableError):
        raise error
    return [Finding(check, Level.WARN, error.message, error.remedy)]
