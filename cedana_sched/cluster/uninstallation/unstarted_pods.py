"""Pods that wait for us to begin: whoever leaves lets them begin first, for nobody else can start them."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.kube.objects import Pod
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names

log = structlog.get_logger(__name__)


async def wait_until_started(pods: Informer[Pod], seconds: float) -> tuple[Pod, ...]:
    """Wait until every pod that returns through us has begun, for at most so long.

    Returns:
        Those that have not: they wait for room in the cluster. Without us they cannot start, and must be deleted.
    """
    changed = asyncio.Event()

    def heard(before: Pod | None, now: Pod | None) -> None:
        del before, now
        changed.set()

    pods.subscribe(heard)
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
        pods.unsubscribe(heard)
    return ()


def is_waiting(pod: Pod) -> bool:
    """Whether it shall continue from a snapshot, and its containers have not begun."""
    is_returning = names.RESTORE_IDENTITY in pod.metadata.annotations and pod.metadata.deletion_timestamp is None
    return is_returning and pod.status.phase in {"", "Pending"}
