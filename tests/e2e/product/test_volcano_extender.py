"""Volcano asks our extender before it evicts, configured as the release's notes say: nothing of the work is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from kubernetes_asyncio.client import ApiException

from cedana_sched.model.objects.eviction_mark import read_mark
from tests.cluster.api.client import Api, Object
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.rendering import NAMESPACE
from tests.e2e.product.volcano_extender import ACCOUNT, EXTENDER, asked_in_vain, secret_segment, silent_extender
from tests.e2e.product.volcano_queues import HOST, completed, groups, on, vcjob

pytestmark = pytest.mark.shape("volcano")

LONG = 400
"""Counts of pods that go on while others come."""
OPEN = "tests.cluster/open"


async def test_nobody_is_evicted_before_its_work_is_saved(
    namespace: Namespace, toolbox: str, installed_with_extender: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(protected("md", "bio", namespace, toolbox, *counting(counts=None), pods=4))
        await begun(bio, *range(4))
        await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
        await completed(namespace, "train")
        await enough(namespace, bio, "md", 4, completed=completed)

        moved = sorted(bio.pods[index][0] for index in range(4) if len(bio.pods[index]) == 2)
        assert len(moved) == 2, "as many as ml needs, and no more"
        assert sorted(wanted_by_the_extender(audit, namespace)) == moved, "no other was frozen for it"


async def test_nobody_but_volcano_is_answered(installed_with_extender: Product, api: Api) -> None:
    """The API server's proxy brings us there as any pod would come that no NetworkPolicy keeps away."""
    service = f"/api/v1/namespaces/{NAMESPACE}/services/{EXTENDER}:extender/proxy"
    segment = await secret_segment(installed_with_extender)
    for stranger, status in (
        ("", 404),
        (f"/{segment[:-1]}", 404),
        (f"/{'0' * len(segment)}", 404),
        (f"/{segment}", 400),
    ):
        for verb in ("preemptable", "reclaimable"):
            with pytest.raises(ApiException) as caught:
                await api.call("POST", f"{service}{stranger}/{verb}", body={"no": "question"})
            assert caught.value.status == status


@pytest.mark.exhaustive  # its next start is tried each time
async def test_without_an_answer_nobody_is_evicted_and_with_the_next_it_goes_on(
    namespace: Namespace, toolbox: str, installed_with_extender: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(protected("md", "bio", namespace, toolbox, *counting(counts=LONG), pods=4))
        await begun(bio, *range(4))
        async with silent_extender(installed_with_extender):
            await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
            await asked_in_vain(namespace)
            for index in range(4):
                await asyncio.wait_for(bio.said(index, len(bio.lines(index)) + 1), patient(30))
            assert audit.writes(namespace=namespace.name, resource="pods", verb="delete") == []
            assert wanted_by_the_extender(audit, namespace) == set()
        await completed(namespace, "train")
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        assert [bio.lines(index) for index in range(4)] == [counts(LONG)] * 4


@pytest.mark.exhaustive  # without a cluster it is tried each time
async def test_of_equal_victims_the_one_goes_that_has_least_to_lose(
    namespace: Namespace, toolbox: str, installed_with_extender: Product, audit: Audit
) -> None:
    """Volcano by itself would take the pod that was created last; it has run longer than the one that had to wait."""
    here, there = sorted(installed_with_extender.cluster.nodes)
    count = counting(counts=LONG)
    async with (
        groups(namespace),
        Following.of(namespace, "fresh") as fresh,
        Following.of(namespace, "stale") as stale,
        opened_at_the_end(installed_with_extender, here) as open_it,
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
        await asyncio.wait_for(asyncio.gather(fresh.read(), stale.read()), patient(60))

        assert (len(fresh.pods[0]), len(stale.pods[0])) == (2, 1)
        assert wanted_by_the_extender(audit, namespace) == {"fresh-sim-0"}
        assert fresh.lines(0) == stale.lines(0) == counts(LONG)


def protected(name: str, queue: str, namespace: Namespace, image: str, *command: str, pods: int = 1) -> Object:
    return vcjob(name, queue, namespace, image, *command, pods=pods, env={"CEDANA_CHECKPOINT": name})


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
