"""Checks of schedulers: those without an adapter, and the adapters' own findings, with the user's permissions."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.adapter import registry
from cedana_sched.adapter.cluster_contract import Diagnosing
from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.release_settings import read_settings
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.resources import DEPLOYMENTS, PODS, UNFINISHED_PODS, Resource
from cedana_sched.model.errors import CedanaSchedError

CHECK: Final = "adapters"
API_SERVICES: Final = Resource("apiregistration.k8s.io/v1", "APIService", "apiservices", namespaced=False)
SCHEDULERS: Final = {"kueue": "kueue.x-k8s.io", "volcano": "scheduling.volcano.sh"}
"""API group that a scheduler installs, by the name of its adapter. Armada has no API group."""
ARMADA: Final = "armada"
ARMADA_JOB: Final = "armada_job_id"
"""Label of the pods of Armada's jobs."""
ARMADA_EXECUTOR: Final = "app=armada-executor"
"""Label of Armada's executor, the name of its chart; the executor may also run outside the cluster."""


class _Spec(msgspec.Struct, frozen=True):
    group: str = ""


class _CountedObject(msgspec.Struct, frozen=True):
    """An object of which only the count matters."""


class _ApiService(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


async def check_enabled_adapters(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check for schedulers without an enabled adapter, and for enabled adapters without their scheduler."""
    adapters = (await read_settings(reads, one)).adapters
    if not adapters:
        return [Finding(CHECK, Level.FAIL, "no adapter is enabled: no preemption is detected", _enable_remedy("kueue"))]
    served = {service.spec.group for service in await reads.read_objects(API_SERVICES, into=_ApiService)}
    found: list[Finding] = []
    for name, group in SCHEDULERS.items():
        if group in served and name not in adapters:
            message = f"{name} is here, and its adapter is not enabled: what it preempts is lost"
            found.append(Finding(CHECK, Level.WARN, message, _enable_remedy(name)))
        if group not in served and name in adapters:
            message = f"the adapter of {name} is enabled, and no kinds of {group} are served"
            found.append(Finding(CHECK, Level.WARN, message, f"install {name}, or set {name}.enabled=false"))
    return found or [Finding(CHECK, Level.OK, f"enabled: {', '.join(sorted(adapters))}")]


async def check_armada_has_adapter(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check for Armada's jobs or executor without an enabled adapter; an idle Armada is not detected."""
    if ARMADA in (await read_settings(reads, one)).adapters:
        return []
    jobs = await reads.read_objects(PODS, labels=ARMADA_JOB, fields=UNFINISHED_PODS, into=_CountedObject)
    executors = () if jobs else await reads.read_objects(DEPLOYMENTS, labels=ARMADA_EXECUTOR, into=_CountedObject)
    if not jobs and not executors:
        return []
    shown = f"{len(jobs)} pods of its jobs" if jobs else "its executor"
    message = f"armada is here ({shown}), and its adapter is not enabled: what it preempts is lost"
    return [Finding(CHECK, Level.WARN, message, f"{_enable_remedy(ARMADA)} --set armada.url=HOST:PORT")]


async def examine(api: Api) -> list[Finding]:
    """Return the findings of every installed adapter that implements `Diagnosing`.

    Raises:
        ApiUnavailableError: the API server is not reachable.
    """
    return [finding for name in sorted(registry.installed_adapters()) for finding in await _diagnose_adapter(name, api)]


async def _diagnose_adapter(name: str, api: Api) -> list[Finding]:
    """Run one adapter's diagnosis; a failure to load the adapter, or a missing permission, is a finding."""
    try:
        adapter = registry.load(name)
        return await adapter.diagnose(api) if issubclass(adapter, Diagnosing) else []
    except ApiUnavailableError:
        raise
    except CedanaSchedError as error:
        return [Finding(name, Level.WARN, error.message, error.remedy)]


def _enable_remedy(name: str) -> str:
    return f"upgrade the release with --set {name}.enabled=true"
