"""Waits until an add-on's Deployments do their work, and tells early why they never will."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import WaitedInVainError, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError

_HOPELESS = {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
"""`CreateContainerError` is not: it also says that the node's containerd was just being restarted."""
_CRASHES = 3
"""Some controllers end once or twice before what they need is there."""


async def wait_available(
    cluster: Cluster, api: Api, namespace: str, deployments: Sequence[str], *, within: float = 120
) -> None:
    """Return when every pod of these Deployments is of the latest template and ready.

    Raises:
        ClusterError: a pod cannot start, crashes again and again, or it takes too long; names the pod's log.
    """
    try:
        async with asyncio.TaskGroup() as group:
            guard = group.create_task(_guard(cluster, api, namespace))
            async with asyncio.TaskGroup() as waiting:
                for name in deployments:
                    waiting.create_task(
                        wait_for(
                            api, "apps/v1", "Deployment", name, is_available, namespace=namespace, within=within
                        )
                    )  # fmt: skip
            guard.cancel()
    except BaseExceptionGroup as failures:
        raise await _explained(cluster, api, namespace, failures) from None


def is_available(deployment: Object) -> bool:
    """Whether all pods of a Deployment are of its latest template and ready, and no older ones are left."""
    wanted, status = deployment["spec"]["replicas"], deployment.get("status", {})
    return status.get("observedGeneration", 0) >= deployment["metadata"]["generation"] and all(
        status.get(count, 0) == wanted for count in ("replicas", "updatedReplicas", "availableReplicas")
    )


async def _guard(cluster: Cluster, api: Api, namespace: str) -> None:
    async with aclosing(api.watch("v1", "Pod", namespace)) as events:
        async for event in events:
            for pod in event.object["items"] if event.type == "LIST" else [event.object]:
                if trouble := trouble_of(pod):
                    name = pod["metadata"]["name"]
                    raise ClusterError(f"{namespace}/{name} {trouble}", log=_log(cluster, pod), remedy="see its log")


def trouble_of(pod: Object) -> str | None:
    """What keeps a pod from ever starting."""
    for container in pod.get("status", {}).get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        reason = waiting.get("reason")
        if reason in _HOPELESS:
            return f"cannot start: {reason} {waiting.get('message', '')}".strip()
        if reason == "CrashLoopBackOff" and container["restartCount"] >= _CRASHES:
            ended = container.get("lastState", {}).get("terminated", {})
            return f"ended {container['restartCount']} times, last with status {ended.get('exitCode')}"
    return None


async def _explained(
    cluster: Cluster, api: Api, namespace: str, failures: BaseExceptionGroup[BaseException]
) -> BaseException:
    """The one failure that a person needs."""
    late, others = failures.split(WaitedInVainError)
    if others or late is None:
        return _first(others or failures)
    pods = await api.objects("v1", "Pod", namespace)
    states = ", ".join(f"{pod['metadata']['name']} is {_state(pod)}" for pod in pods) or "no pod was created"
    return ClusterError(
        f"the Deployments in {namespace} did not become available: {states}",
        log=_log(cluster, pods[0]) if pods else None,
        remedy=f"see `kubectl -n {namespace} describe deployments,pods`",
    )


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _state(pod: Object) -> str:
    conditions = pod.get("status", {}).get("conditions", ())
    unmet = next((each for each in conditions if each["status"] != "True" and each.get("message")), None)
    return f"{pod['status']['phase']} ({unmet['message']})" if unmet else str(pod["status"]["phase"])


def _log(cluster: Cluster, pod: Object) -> Path | None:
    """The newest log of a pod, as its node's kubelet keeps it."""
    metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
    folder = cluster.place.logs / node / "pods" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
    return max(folder.glob("*/*.log"), key=lambda path: path.stat().st_mtime, default=None)
