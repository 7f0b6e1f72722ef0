"""Volcano asks our extender before it evicts, configured as the release's notes say: nothing of the work is lost."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from cedana_sched.model.objects.eviction_mark import read_mark
from tests.cluster.addons import catalog
from tests.cluster.addons.charts import helm_environment
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.volcano import NAMESPACE as VOLCANO
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.commands import run
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.product.counting import ALL, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.rendering import NAMESPACE, RELEASE
from tests.e2e.product.volcano_queues import completed, groups, vcjob

pytestmark = pytest.mark.shape("volcano")

EXTENDER = f"{RELEASE}-volcano-extender"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{EXTENDER}"
COMPONENT = "app.kubernetes.io/component=volcano-extender"
ASKED_IN_VAIN = b"Reclaimable failed with error"
SEVERAL = 6
"""Calls of the scheduler, of which it makes one or more in each of its cycles."""
LONG = 400
"""Counts of pods that go on while others come."""
HOST = "kubernetes.io/hostname"
OPEN = "tests.cluster/open"


@pytest_asyncio.fixture(loop_scope="session")
async def product(installed: Product, volcano: None, steps: Steps) -> Product:
    """The product with the extender, and Volcano with the configuration that its notes ask for."""
    pods = {key: installed.values["webhooks"][key] for key in ("podAnnotations", "resources")}
    await installed.ensure(volcano={"enabled": True, "extender": {"enabled": True, "victimSteering": True, **pods}})
    await wait_available(installed.cluster, installed.api, NAMESPACE, [EXTENDER])
    await catalog.install(installed.cluster, [Volcano(await noted(installed))], steps)
    return installed


async def noted(product: Product) -> str:
    """Volcano's configuration, as it stands in the release's notes."""
    notes = await run(
        product.binaries.program("helm"), "get", "notes", RELEASE, f"--namespace={NAMESPACE}",
        env=helm_environment(product.cluster),
        what="helm get notes failed",
        remedy="see whether the release is there",
    )  # fmt: skip
    begins = notes.index("     actions:")
    return textwrap.dedent(notes[begins : notes.index("\n\n", begins)])


async def test_nobody_is_evicted_before_its_work_is_saved(
    namespace: Namespace, toolbox: str, product: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(protected("md", "bio", namespace, toolbox, *counting(), pods=4))
        await begun(bio, *range(4))
        await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
        await completed(namespace, "train")
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), 60)

        assert [bio.lines(index) for index in range(4)] == [ALL] * 4
        moved = sorted(bio.pods[index][0] for index in range(4) if len(bio.pods[index]) == 2)
        assert len(moved) == 2, "as many as ml needs, and no more"
        assert sorted(wanted_by_the_extender(audit, namespace)) == moved, "no other was frozen for it"


async def test_without_an_answer_nobody_is_evicted_and_with_the_next_it_goes_on(
    namespace: Namespace, toolbox: str, product: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(protected("md", "bio", namespace, toolbox, *counting(counts=LONG), pods=4))
        await begun(bio, *range(4))
        async with silent_extender(product):
            await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
            await asyncio.wait_for(said_by_the_scheduler(namespace, ASKED_IN_VAIN, SEVERAL), 120)
            for index in range(4):
                await asyncio.wait_for(bio.said(index, len(bio.lines(index)) + 1), 30)
            assert audit.writes(namespace=namespace.name, resource="pods", verb="delete") == []
            assert wanted_by_the_extender(audit, namespace) == set()
        await completed(namespace, "train")
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), 60)
        assert [bio.lines(index) for index in range(4)] == [counts(LONG)] * 4


async def test_of_equal_victims_the_one_goes_that_has_least_to_lose(
    namespace: Namespace, toolbox: str, product: Product, audit: Audit
) -> None:
    """Volcano by itself would take the pod that was created last; it has run longer than the one that had to wait."""
    here, there = sorted(product.cluster.nodes)
    count = counting(counts=LONG)
    async with (
        groups(namespace),
        Following.of(namespace, "fresh") as fresh,
        Following.of(namespace, "stale") as stale,
        opened_at_the_end(product, here) as open_it,
    ):
        await namespace.apply(on({OPEN: "true"}, protected("fresh", "bio", namespace, toolbox, *count)))
        await namespace.wait("v1", "Pod", "fresh-sim-0", lambda _: True)
        await namespace.apply(on({HOST: here}, protected("stale", "bio", namespace, toolbox, *count)))
        filler = vcjob("filler", "bio", namespace, toolbox, "sh", "-c", "trap exit TERM; sleep 600 & wait", pods=2)
        await namespace.apply(on({HOST: there}, filler))
        await begun(stale, 0)
        for index in range(2):
            await namespace.ready(f"filler-sim-{index}")
        await open_it()
        await begun(fresh, 0)

        await namespace.apply(on({HOST: here}, vcjob("train", "ml", namespace, toolbox, "true", pods=1)))
        await completed(namespace, "train")
        await completed(namespace, "fresh")
        await completed(namespace, "stale")
        await asyncio.wait_for(asyncio.gather(fresh.read(), stale.read()), 60)

        assert (len(fresh.pods[0]), len(stale.pods[0])) == (2, 1)
        assert wanted_by_the_extender(audit, namespace) == {"fresh-sim-0"}
        assert fresh.lines(0) == stale.lines(0) == counts(LONG)


def protected(name: str, queue: str, namespace: Namespace, image: str, *command: str, pods: int = 1) -> Object:
    return vcjob(name, queue, namespace, image, *command, pods=pods, env={"CEDANA_CHECKPOINT": name})


def on(labels: dict[str, str], job: Object) -> Object:
    """The same job, on nodes with these labels only."""
    (task,) = job["spec"]["tasks"]
    task["template"]["spec"]["nodeSelector"] = labels
    return job


def counts(number: int) -> Sequence[str]:
    return [str(one) for one in range(number)]


def wanted_by_the_extender(audit: Audit, namespace: Namespace) -> set[str]:
    """Pods that it has marked."""
    found = set()
    for write in audit.writes(namespace=namespace.name, resource="pods", verb="patch", user=ACCOUNT):
        if write.code == 200:
            mark = read_mark(write.body["metadata"]["annotations"])
            assert mark is not None
            assert mark.by.startswith(f"volcano extender, reclaim for {namespace.name}/train-")
            found.add(write.name)
    return found


@asynccontextmanager
async def silent_extender(product: Product) -> AsyncIterator[None]:
    """No replica of it, inside the block."""
    await _scale(product, 0)
    await wait_for_all(product.api, "v1", "Pod", lambda pods: not pods, namespace=NAMESPACE, selector=COMPONENT)
    try:
        yield
    finally:
        await _scale(product, 2)
        await wait_available(product.cluster, product.api, NAMESPACE, [EXTENDER])


async def _scale(product: Product, replicas: int) -> None:
    await product.api.patch("apps/v1", "Deployment", EXTENDER, {"spec": {"replicas": replicas}}, NAMESPACE)


async def said_by_the_scheduler(namespace: Namespace, part: bytes, times: int) -> None:
    """Wait until it has said something so many times from now on."""
    command = namespace.kubectl_command(
        "logs", f"--namespace={VOLCANO}", "--follow", "--tail=0", "deployment/volcano-scheduler"
    )
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        while times and (line := await process.stdout.readline()):
            times -= part in line
    finally:
        process.terminate()
        await process.wait()
    assert not times, "its log has ended"


@asynccontextmanager
async def opened_at_the_end(product: Product, node: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A node that pods may wait for, until what this gives is called."""

    async def label(value: str | None) -> None:
        await product.api.patch("v1", "Node", node, {"metadata": {"labels": {OPEN: value}}})

    async def open_it() -> None:
        await label("true")

    try:
        yield open_it
    finally:
        await label(None)
