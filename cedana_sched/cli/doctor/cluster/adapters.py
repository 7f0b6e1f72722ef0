"""What the adapters find in a cluster, with the rights of the person who asks."""

from __future__ import annotations

from cedana_sched.adapter import registry
from cedana_sched.adapter.cluster import Diagnosing
from cedana_sched.cli.doctor.findings import Finding, Level
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.errors import CedanaSchedError


async def examine(api: Api) -> list[Finding]:
    """Findings of every adapter that can look.

    Raises:
        ApiUnavailableError: the API server does not answer.
    """
    return [finding for name in sorted(registry.installed()) for finding in await _of(name, api)]


async def _of(name: str, api: Api) -> list[Finding]:
    """An adapter that cannot be loaded, or a person who may not look, is a finding itself."""
    try:
        adapter = registry.load(name)
        return await adapter.diagnose(api) if issubclass(adapter, Diagnosing) else []
    except ApiUnavailableError:
        raise
    except CedanaSchedError as error:
        return [Finding(name, Level.WARN, error.message, error.remedy)]
