"""Detect from the API server's version whether containers may have restart rules of their own (KEP 5307).

The feature gate `ContainerRestartRules` is on from Kubernetes 1.35. An API server of 1.34, or one whose gate is off,
drops the fields (`dropContainerRestartRules` in pkg/api/pod/util.go); an older one refuses the pod, because its
validation allows no `restartPolicy` of an init container but `Always`. During an upgrade of the control plane, API
servers are at most one minor version apart: if one is 1.35, none refuses. An older kubelet ignores the fields.
"""

from __future__ import annotations

import re
from typing import Final

import structlog

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError, RefusedByServerError
from cedana_sched.retrying import retry

log = structlog.get_logger(__name__)

SINCE: Final = (1, 35)
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\b")


async def has_restart_rules(api: Api) -> bool:
    """Retry until the API server answers; False if it refuses its version, or the version cannot be parsed."""
    version = await retry("version of the API server", lambda: _server_version(api), ApiError)
    found = _VERSION.match(version)
    if found is None:
        log.warning("restore containers get no restart rules: unknown version of the API server", version=version)
        return False
    known = (int(found[1]), int(found[2])) >= SINCE
    log.info("version of the API server", version=version, restart_rules=known)
    return known


async def _server_version(api: Api) -> str:
    """Return the version; empty if the API server refuses it."""
    try:
        return await api.version()
    except RefusedByServerError as error:
        log.warning("the API server's version cannot be read", error=error.message)
        return ""
