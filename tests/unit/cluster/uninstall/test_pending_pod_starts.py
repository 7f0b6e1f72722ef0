"""Nobody leaves while pods wait for him to begin, unless they wait too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cedana_sched.cluster.uninstall.pending_pod_starts import wait_until_started
from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodStatus
from cedana_sched.kube.watching import Change, Changed, Informer, Listed
from cedana_sched.model.objects import names

RETURNING = {names.RESTORE_IDENTITY: "md/0@1"}


class Told:
    """A watch that tells what it is given."""

    def __init__(self, *pods: Pod) -> None:
        self.queue: asyncio.Queue[Change[Pod]] = asyncio.Queue()
        self.queue.put_nowait(Listed(pods))

    async def changes(self) -> AsyncGenerator[Change[Pod], None]:
        while True:
            yield await self.queue.get()


def pod(name: str, phase: str, annotations: dict[str, str] = RETURNING, *, deleted: str | None = None) -> Pod:
    metadata = Metadata(name, "lab", name, annotations=annotations, deletion_timestamp=deleted)
    return Pod(metadata, status=PodStatus(phase=phase))


async def test_waits_for_the_pods_that_return_and_for_no_others() -> None:
    told = Told(pod("md", "Pending"), pod("plain", "Pending", {}), pod("dying", "Pending", deleted="now"))
    pods: Informer[Pod] = Informer(told)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        following = group.create_task(pods.run())
        await pods.synced.wait()
        waiting = group.create_task(wait_until_started(pods, 60))
        heard = asyncio.Event()
        pods.subscribe(lambda before, now: heard.set())
        told.queue.put_nowait(Changed(pod("other", "Running")))
        await heard.wait()
        assert not waiting.done()
        told.queue.put_nowait(Changed(pod("md", "Running")))
        assert await waiting == ()
        following.cancel()


async def test_pods_without_room_are_given_up() -> None:
    stuck = pod("md", "Pending")
    pods: Informer[Pod] = Informer(Told(stuck))  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        following = group.create_task(pods.run())
        await pods.synced.wait()
        assert await wait_until_started(pods, 0.05) == (stuck,)
        following.cancel()
