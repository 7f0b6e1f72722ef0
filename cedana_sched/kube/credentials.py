"""Credentials for the API server, and their reload once the API server refuses them.

kubernetes-asyncio reads a pod's projected token at most once a minute. A token that the API server refuses (401) is
reloaded at once: after a rotation of the token-signing keys, the kubelet may just have renewed the token.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader
from kubernetes_asyncio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigLoader, KubeConfigMerger
from yaml import YAMLError

from cedana_sched.model.errors import UsageError

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Mount path of a pod's ServiceAccount."""

_DEFAULT_NAMESPACE: Final = "default"

Renew = Callable[[], Awaitable[None]]


async def load_credentials(configuration: Configuration, kubeconfig: str | None, context: str | None = None) -> Renew:
    """Load the credentials into `configuration`: those of the pod's ServiceAccount, or of a context of a kubeconfig.

    Returns:
        Reloads them.

    Raises:
        UsageError: there is neither.
    """
    with _explained_errors(kubeconfig):
        if _is_pod(kubeconfig, context):
            return _load_service_account(configuration)
        return await _load_kubeconfig(configuration, kubeconfig, context)


def namespace_of_context(kubeconfig: str | None, context: str | None = None) -> str:
    """Return the namespace that goes with these credentials: the pod's, or that of a context; `default` without one.

    Raises:
        UsageError: as `load_credentials`.
    """
    with _explained_errors(kubeconfig):
        if _is_pod(kubeconfig, context):
            return (Path(SERVICE_ACCOUNT) / "namespace").read_text(encoding="utf-8").strip() or _DEFAULT_NAMESPACE
        merged = KubeConfigMerger(kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION).config
        chosen: Any = KubeConfigLoader(merged, active_context=context).current_context
        return str(chosen["context"].get("namespace") or _DEFAULT_NAMESPACE)


def _is_pod(kubeconfig: str | None, context: str | None) -> bool:
    return kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ


@contextmanager
def _explained_errors(kubeconfig: str | None) -> Iterator[None]:
    """Raise UsageError for credentials that cannot be read: the loader checks little of what it parses."""
    try:
        yield
    except (config.ConfigException, OSError, TypeError, YAMLError) as error:
        remedy = "name a kubeconfig, or run in a pod with a ServiceAccount"
        named = kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION
        raise UsageError("kubeconfig", named, f"cannot be used: {error}", remedy=remedy) from error


def _load_service_account(configuration: Configuration) -> Renew:
    loader = InClusterConfigLoader(f"{SERVICE_ACCOUNT}/token", f"{SERVICE_ACCOUNT}/ca.crt")
    loader.load_and_set(configuration)

    async def renew() -> None:
        loader.token_expires_at -= timedelta(days=1)  # makes the next request read the file

    return renew


async def _load_kubeconfig(configuration: Configuration, kubeconfig: str | None, context: str | None) -> Renew:
    async def renew() -> None:
        await config.load_kube_config(kubeconfig, context=context, client_configuration=configuration)

    await renew()
    return renew
