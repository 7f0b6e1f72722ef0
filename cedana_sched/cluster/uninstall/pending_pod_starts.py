"""Pods whose restore is pending: they must start before the uninstallation, because no other component starts them."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names

log = structlog.get_logger(__name__)


async def wait_until_started(pods: Informer[Pod], seconds: float) -> tuple[Pod, ...]:
    """Wait until every pod with a restore has started, within the time limit.

    Returns:
        Pods that have not started: they wait for capacity. Without us they cannot start, and must be deleted.
    """
    changed = asyncio.Event()

    def on_pod_change(before: Pod | None, now: Pod | None) -> None:
        del before, now
        changed.set()

    pods.subscribe(on_pod_change)
    try:
        async with asyncio.timeout(seconds):
            while any(map(is_waiting, pods)):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        for pod in (left := tuple(filter(is_waiting, pods))):
            where = f"{pod.metadata.namespace}/{pod.metadata.name}"
            log.warning("pod cannot start any more: delete it, and it starts from the beginning", pod=where)
        return left
    finally:
        pods.unsubscribe(on_pod_change)
    return ()


def is_waiting(pod: Pod) -> bool:
    """Whether the pod has a restore, and its containers have not started."""
    is_returning = names.RESTORE_IDENTITY in pod.metadata.annotations and pod.metadata.deletion_timestamp is None
    return is_returning and pod.status.phase in {"", "Pending"}
