"""Real watches with rights of their own outlive restarts of a real API server, whose RBAC is late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api as ProductApi
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import CONFIG_MAPS, JOBS, PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.retrying import retry
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient

pytestmark = pytest.mark.any_shape

USER = "watcher"
MIRRORS = 12
RESTARTS = 2


async def _allow(kubeconfig: Path) -> None:
    """The rights of our components: by a ClusterRole, which an API server that has just started has not loaded yet."""
    rules = [
        {"apiGroups": ["", "batch"], "resources": ["configmaps", "pods", "jobs"], "verbs": ["get", "list", "watch"]}
    ]
    binding: dict[str, Any] = {
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    async with Api.open(kubeconfig) as api:
        for kind, body in (
            ("ClusterRole", {"metadata": {"name": USER}, "rules": rules}),
            ("ClusterRoleBinding", binding),
        ):
            await api.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, **body})


@asynccontextmanager
async def _watching(api: ProductApi) -> AsyncIterator[list[Informer[PartialObject]]]:
    informers = [
        Informer(Watch(api, (JOBS, PODS, CONFIG_MAPS)[number % 3], PartialObject)) for number in range(MIRRORS)
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.synced.wait()
        yield informers
        for task in tasks:
            task.cancel()


async def test_watches_outlive_restarts_of_the_api_server(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    control_plane = cluster.control_plane
    await _allow(cluster.kubeconfig)
    administrator = json.loads(cluster.kubeconfig.read_text())
    server = administrator["clusters"][0]["cluster"]["server"]
    authority = control_plane.authority()
    kubeconfig = authority.kubeconfig(tmp_path / "kubeconfig", authority.issue(USER, user=USER), server)
    async with ProductApi.open(str(kubeconfig)) as api, _watching(api) as informers:
        for number in range(RESTARTS):
            # one that is told to end would wait a minute for watches
            await control_plane.machine.kill_service("kube-apiserver")
            await control_plane.machine.start_service("kube-apiserver")
            name = f"after-{number}"
            await _create(cluster, namespace.name, name)
            for informer in informers[2::3]:
                await _has(informer, namespace.name, name)


async def _create(cluster: Cluster, namespace: str, name: str) -> None:
    """As soon as the API server takes it."""
    async with ProductApi.open(str(cluster.kubeconfig)) as api, asyncio.timeout(patient(60)):
        body = {"metadata": {"name": name, "namespace": namespace}}
        await retry("ConfigMap", lambda: api.apply(CONFIG_MAPS, body), ApiError)


async def _has(informer: Informer[PartialObject], namespace: str, name: str) -> None:
    seen = asyncio.Event()

    def heard(*_: Any) -> None:
        if informer.get(name, namespace) is not None:
            seen.set()

    informer.subscribe(heard)
    heard()
    async with asyncio.timeout(patient(60)):
        await seen.wait()
    informer.unsubscribe(heard)
