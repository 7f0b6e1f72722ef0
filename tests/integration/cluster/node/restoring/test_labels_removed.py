"""Somebody takes our label from a pod that is on its way back, and the coordinator labels it again: it continues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.kube.builtin_kinds import Pod
from tests.integration.cluster.node.pods import Pod as Sandboxed
from tests.integration.cluster.node.restoring.conftest import Site
from tests.integration.cluster.node.restoring.counting import save_counting_pod

pytestmark = pytest.mark.criu


class Server:
    """Still has the pod."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self.asked = asyncio.Event()

    async def get(self, *_: object, into: type[Pod]) -> Pod:
        assert into is Pod
        self.asked.set()
        return self._pod


def test_pod_whose_label_is_removed_for_a_moment_continues(site: Site) -> None:
    _, images = save_counting_pod(site)
    pod = site.replacement("pod-2", "main")
    asyncio.run(_return_without_label(site, pod, images))
    container = pod.containers["main"]
    container.await_lines(1)
    assert container.lines[0].strip() != "cold"


async def _return_without_label(site: Site, pod: Sandboxed, images: Path) -> None:
    body = site.watched.pods[pod.uid]
    server = Server(body)
    nothing = cast("Any", None)
    pods = NodePods(cast("Any", server), "n1", OrderFeed(nothing, "n1", nothing))
    pods.informer.synced.set()
    returns = PodRestorer(site.node.places, site.state, site.node.folder / "data", site.toolchain, pods, 20.0)
    forgetting: list[asyncio.Future[None]] = []

    def heard(before: Pod | None, now: Pod | None) -> None:
        """As the agent does."""
        if now is None and before is not None:
            forgetting.append(asyncio.ensure_future(asyncio.to_thread(returns.forget_all_but, pods.uids())))

    pods.subscribe(heard)
    looking = asyncio.create_task(pods.present.run())
    pods.informer._put(body)
    ref, restore = site.ref(pod), site.return_of(pod)
    agent = asyncio.create_task(returns.restore(restore, ref, images, site.facts))
    await asyncio.to_thread(site.let_start, pod)
    pods.informer._drop(body)
    await server.asked.wait()
    await asyncio.gather(*forgetting)
    pods.informer._put(body)
    container = pod.container("main")
    container.make(["/bin/echo", "cold"])
    await asyncio.to_thread(container.start)
    await agent
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
