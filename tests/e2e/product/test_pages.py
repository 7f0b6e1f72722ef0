"""Whoever follows the pages word by word has work that survives what takes its pods away."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest
import pytest_asyncio
import tenacity
import yaml

from cedana_sched.model.objects.names import API_VERSION, NODE_INTERRUPTION
from cedana_sched.model.preemption import INTERVAL
from tests.cluster.addons.catalog import install
from tests.cluster.addons.charts import helm_environment
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import is_gone, wait_for, wait_for_all
from tests.cluster.armada import components
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product import parts
from tests.e2e.product.armada_jobs import half_a_node
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.lost_nodes import node_of_store, out_of_service, switched_off
from tests.e2e.product.page import Page
from tests.e2e.product.queues import groups
from tests.e2e.product.reclaiming import reclaim
from tests.e2e.product.test_terminals_return import attached
from tests.e2e.product.volcano_queues import HALF_A_NODE, RECLAIMS, SCHEDULING, completed

_PODS: Final = 4
_ENOUGH: Final = 5
"""Lines that show that a program runs, or runs on; it says one a second."""

_VCJOB: Final = "volcano.sh/job-name"
_COUNT: Final = "job-name=count"
_NO_PROVIDER: Final = {"agent.interruptions.provider=auto": "agent.interruptions.provider=none"}
"""A test cluster has none, and to look for one takes minutes."""


class Open(Protocol):
    """Opens a page; `instead` as of `Page`, and the image of its pods, if it has any."""

    def __call__(self, name: str, instead: Mapping[str, str], *, has_pods: bool = True) -> Page: ...


@pytest_asyncio.fixture(loop_scope="session")
async def research(cluster: Cluster, api: Api) -> AsyncIterator[Namespace]:
    """The namespace of the pages."""
    await wait_for(api, "v1", "Namespace", "research", is_gone, within=120)  # that of the page before
    async with Namespace.created(cluster, api, "research") as namespace:
        yield namespace


@pytest_asyncio.fixture(loop_scope="session")
async def product(release: Product) -> AsyncIterator[Product]:
    """The product that knows no scheduler yet; the page changes it."""
    await release.ensure()
    yield release
    await release.forget()


@pytest.fixture
def page(cluster: Cluster, helm: Binaries, toolbox: str, tmp_path: Path) -> Open:
    """Opens a page; Python is where tests have it."""

    def opened(name: str, instead: Mapping[str, str], *, has_pods: bool = True) -> Page:
        programs = [
            helm.program("helm").parent,
            cluster.binaries.program("kubectl").parent,
            Path(sys.executable).parent,
        ]
        path = os.pathsep.join([str(tmp_path / "bin"), *map(str, programs), os.environ["PATH"]])
        environment = {**helm_environment(cluster), "PATH": path, "HOME": str(tmp_path)}
        images = {"image: python:3": f"image: {toolbox}"} if has_pods else {}
        return Page(name, tmp_path, environment, {**images, **instead})

    return opened


@pytest.mark.any_shape
async def test_kueue(research: Namespace, toolbox: str, installed_with_kueue: Product, page: Open) -> None:
    instead = {"clusterqueue bio": "clusterqueue research-bio", "{requests: {cpu: 1}}": "{requests: {cpu: 200m}}"}
    kubernetes = page("kubernetes.md", instead)
    async with groups(research, check=None), Following.of(research, "md") as bio:
        await kubernetes.follow("Two groups, one preemption")
        await _begun(bio)

        await reclaim(research, toolbox)

        assert await _continued(research, bio, "job-name=md") == _PODS


@pytest.mark.any_shape
@pytest.mark.nodes(2)
@pytest.mark.exhaustive
async def test_drain(research: Namespace, product: Product, page: Open) -> None:
    kubernetes = page("kubernetes.md", {"--timeout=15m": f"--timeout=15m --pod-selector={_COUNT}"})
    async with _counting(research, kubernetes) as count:
        try:
            await kubernetes.follow("A drain")
            await _goes_on_elsewhere(research, count)
        finally:
            await research.kubectl("uncordon", count.nodes[0][0])


@pytest.mark.any_shape
@pytest.mark.nodes(2)
@pytest.mark.exhaustive
async def test_notice(research: Namespace, product: Product, page: Open) -> None:
    kubernetes, operations = page("kubernetes.md", {}), page("operations.md", _NO_PROVIDER, has_pods=False)
    async with _counting(research, kubernetes) as count:
        await operations.follow("Spot nodes")
        node = count.nodes[0][0]
        try:
            await operations.follow("Try a notice")
            await _goes_on_elsewhere(research, count)
            await wait_for(research.api, "v1", "Node", node, lambda body: body["spec"].get("unschedulable", False))
        finally:
            await research.kubectl("annotate", "node", node, f"{NODE_INTERRUPTION}-")
        await wait_for(research.api, "v1", "Node", node, lambda body: not body["spec"].get("unschedulable", False))


@pytest.mark.any_shape
@pytest.mark.nodes(2)
@pytest.mark.exhaustive
async def test_lost_node(research: Namespace, product: Product, api: Api, page: Open) -> None:
    operations = page("operations.md", {"intervalSeconds: 600": "intervalSeconds: 2"}, has_pods=False)
    kubernetes = page("kubernetes.md", {})
    await kubernetes.follow("Without a batch scheduler")
    await operations.follow("Periodic snapshots")
    try:
        async with Following.of(research, "count") as count:
            async with cordoned(research, await node_of_store(research)):
                await kubernetes.follow("A Job to try it with")
            await wait_for_all(api, API_VERSION, "Checkpoint", _has_ready_of_interval, namespace=research.name)
            node = count.nodes[0][0]
            async with switched_off(research, node), out_of_service(research, node):
                await asyncio.wait_for(count.said(0, len(count.lines(0)) + _ENOUGH), patient(180))
                first, second = ([int(line) for line in lines] for lines in count.by_pod(0))
                assert 0 < second[0] <= first[-1] + 1
                assert _is_gapless(second)
                assert count.nodes[0][1] != node
        await parts.whole(api)
    finally:
        await api.delete(API_VERSION, "CheckpointPolicy", "periodic")


@pytest.mark.any_shape
@pytest.mark.exhaustive
async def test_terminal(research: Namespace, product: Product, page: Open) -> None:
    kubernetes = page("kubernetes.md", {})
    await kubernetes.follow("Without a batch scheduler")
    await kubernetes.follow("Terminals")
    before = await research.get("v1", "Pod", "shell-0")
    async with attached(research, "shell-0") as terminal:
        terminal.type("word=kept; echo $word\n")
        await terminal.shows("\nkept\r\n")
    await research.kubectl("delete", "pod", "shell-0")
    await research.wait("v1", "Pod", "shell-0", lambda pod: pod["metadata"]["uid"] != before["metadata"]["uid"])
    await research.ready("shell-0", within=120)
    async with attached(research, "shell-0") as terminal:
        terminal.type("echo $word again\n")
        await terminal.shows("\nkept again\r\n")


@pytest.mark.shape("volcano")
async def test_volcano(
    research: Namespace, product: Product, cluster: Cluster, api: Api, steps: Steps, page: Open
) -> None:
    await install(cluster, [Volcano(RECLAIMS)], steps)
    volcano = page("volcano.md", {"{requests: {cpu: 1}}": f"{{requests: {{cpu: {HALF_A_NODE}}}}}"})
    try:
        async with Following.of(research, "md", label=_VCJOB) as bio:
            await volcano.follow("Enable it")
            (configuration,) = volcano.files("Enable it").values()
            assert yaml.safe_load(configuration) == yaml.safe_load(RECLAIMS), "what this cluster has"
            await volcano.follow("Protect a queue")
            await volcano.follow("A job")
            await _begun(bio)

            await volcano.follow("A preemption")
            await completed(research, "train")

            assert await _continued(research, bio, f"{_VCJOB}=md") == _PODS // 2
            await volcano.follow("Stop")
    finally:
        for name in ("bio", "ml"):
            await api.delete(SCHEDULING, "Queue", name)


@pytest.mark.any_shape
@pytest.mark.nodes(2)
async def test_armada(
    research: Namespace,
    product: Product,
    cluster: Cluster,
    steps: Steps,
    armada: Armada,
    page: Open,
    tmp_path: Path,
) -> None:
    cpu = f"{{cpu: {await half_a_node(research)},"
    told = page("armada.md", {"armada.example.org:50051": armada.address_in(cluster), "{cpu: 1,": cpu})
    await _lay_armadactl(armada, tmp_path, steps)
    await told.follow("Enable it")
    await told.follow("Two queues")
    async with Jobs.opened(armada.address, research.name) as jobs, Following.of(research, "md", label="app") as bio:
        try:
            await _once_the_queue_is_known(lambda: told.follow("A job"))
            await research.pods("app=md", count=_PODS, within=120)
            await _goes_on(bio, 0, _PODS * _ENOUGH)

            await _once_the_queue_is_known(lambda: told.follow("A preemption"))
            await research.pods("app=train", phase="Succeeded", count=2, within=180)

            await research.pods("app=md", count=_PODS, within=180)
            await _goes_on(bio, 0, _PODS * _ENOUGH)
            await asyncio.wait_for(bio.all_said(1), patient(60))
            said = [[int(line) for line in lines] for lines in bio.by_pod(0)]
            assert all(_is_gapless(numbers) for numbers in said)
            later = [numbers[0] for numbers in said if numbers[0] > 0]
            assert len(later) == _PODS // 2
            assert {number - 1 for number in later} <= {numbers[-1] for numbers in said}
            await told.follow("Stop")
        finally:
            for queue, job_set in (("bio", "md"), ("ml", "train")):
                await jobs.client.cancel_jobset(queue=queue, job_set_id=job_set, filter_states=[])


@asynccontextmanager
async def _counting(namespace: Namespace, kubernetes: Page) -> AsyncIterator[Following]:
    """The page's Job, which has counted for a while, in a protected namespace."""
    await kubernetes.follow("Without a batch scheduler")
    async with Following.of(namespace, "count") as count:
        await kubernetes.follow("A Job to try it with")
        await asyncio.wait_for(count.said(0, _ENOUGH), patient(120))
        yield count


async def _goes_on_elsewhere(namespace: Namespace, count: Following) -> None:
    """Wait until a second pod counts on, on another node; nothing is left out or repeated, and no pod has failed."""
    await namespace.wait("batch/v1", "Job", "count", lambda job: job["status"].get("ready") == 1, within=120)
    await asyncio.wait_for(count.all_said(1), patient(120))
    await _goes_on(count, 0, _ENOUGH)
    assert len(set(count.nodes[0])) == len(count.pods[0]) == 2
    numbers = [int(line) for line in count.lines(0)]
    assert numbers[0] == 0
    assert _is_gapless(numbers), numbers
    assert (await namespace.get("batch/v1", "Job", "count"))["status"].get("failed", 0) == 0


def _has_ready_of_interval(checkpoints: list[Object]) -> bool:
    return any(
        one["spec"]["reason"] == INTERVAL and one.get("status", {}).get("phase") == "Ready" for one in checkpoints
    )


async def _lay_armadactl(armada: Armada, home: Path, steps: Steps) -> None:
    """Have it, set up for that Armada."""
    lab = {"armadaUrl": armada.address, "forceNoTls": True}
    (home / "bin").mkdir()
    (home / "bin/armadactl").symlink_to((await ensure(components.TOOL, steps=steps)).program("armadactl"))
    (home / ".armadactl.yaml").write_text(yaml.safe_dump({"currentContext": "lab", "contexts": {"lab": lab}}))


@tenacity.retry(  # the server looks once a second which queues there are, and takes nothing before
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(15),
    retry=tenacity.retry_if_exception_type(ClusterError),
    reraise=True,
)
async def _once_the_queue_is_known(follow: Callable[[], Awaitable[None]]) -> None:
    await follow()


async def _begun(following: Following) -> None:
    for index in range(_PODS):
        await asyncio.wait_for(following.said(index, _ENOUGH), patient(120))


async def _goes_on(following: Following, index: int, lines: int) -> None:
    await asyncio.wait_for(following.said(index, len(following.lines(index)) + lines), patient(120))


async def _continued(namespace: Namespace, following: Following, selector: str) -> int:
    """Wait until all run on; none may have left out or repeated anything. Returns how many are in another pod now."""
    await namespace.pods(selector, count=_PODS, within=180)
    for index in range(_PODS):
        await _goes_on(following, index, _ENOUGH)
        numbers = [int(line) for line in following.lines(index)]
        assert numbers[0] == 0
        assert _is_gapless(numbers), f"index {index}: {numbers}"
    return sum(len(following.pods[index]) == 2 for index in range(_PODS))


def _is_gapless(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
