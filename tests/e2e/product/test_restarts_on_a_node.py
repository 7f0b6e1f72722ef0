"""The kubelet, containerd or the agent of a node ends, or is replaced, in the middle of what it does: no work is lost.

Programs end at SIGTERM here: a pod whose hold breaks loses its work.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator

import pytest
from _pytest.mark import ParameterSet

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.api.client import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product import parts
from tests.e2e.product.counting import LARGE, Completed, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import PHASES, all_at, reached
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, completed_in_the_end, reclaim
from tests.e2e.product.webhooks_away import no_webhooks

pytestmark = pytest.mark.any_shape

_PODS = 4
_LOST, _UNSTARTED = (255, "Unknown"), (128, "StartError")
"""Ends of containers: of an exit that containerd lost, of a start that it did not answer or whose caller has gone."""
_HAPPENS: dict[str, parts.Kill] = {
    "kubelet": parts.restart_kubelets,
    "containerd": parts.restart_containerds,
    "agent killed": parts.kill_processes,
    "agent replaced": parts.replace_agents,
}


def _cases(*phases: str, always: str) -> Iterator[ParameterSet]:
    """All at every phase; `always` is the most telling one, the others are exhaustive."""
    for phase, happens in itertools.product(phases, _HAPPENS):
        name = f"{happens}-{phase}"
        marks = () if name == always else pytest.mark.exhaustive
        yield pytest.param(_HAPPENS[happens], phase, marks=marks, id=name)


@pytest.mark.parametrize(
    ("happens", "phase"),
    list(_cases("freezing", "dumping", "released", "staging", "restoring", always="containerd-restoring")),
)
async def test_preempted_pods_lose_nothing(
    happens: parts.Kill, phase: str, namespace: Namespace, toolbox: str, installed_with_kueue: Product,
    cluster: Cluster, api: Api,
) -> None:  # fmt: skip
    await parts.renew(api)
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await _begin(namespace, toolbox, bio, happens)
        async with asyncio.TaskGroup() as group:
            group.create_task(reclaim(namespace, toolbox), name="ml")
            await reached(namespace, *PHASES[phase])
            await happens(cluster, api, "agent")

        await _nothing_is_lost(namespace, bio, happens)
        await _nothing_is_done_twice(namespace, phase)
    await parts.whole(api)


@pytest.mark.parametrize(("happens", "phase"), list(_cases("freezing", "dumping", always="agent killed-dumping")))
async def test_deleted_pods_that_are_held_lose_nothing(
    happens: parts.Kill, phase: str, namespace: Namespace, toolbox: str, installed_with_kueue: Product,
    cluster: Cluster, api: Api,
) -> None:  # fmt: skip
    """Nobody holds the eviction, so that the kubelet ends the pods: it waits for their preStop calls."""
    await parts.renew(api)
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await _begin(namespace, toolbox, bio, happens)
        async with Following.of(namespace, "train") as ml:
            async with no_webhooks(api):
                # it keeps its place until the webhooks are back, without which md would come back cold
                train = counting(counts=None)
                await namespace.apply(indexed_job("train", "ml", toolbox, *train, pods=2))
                await reached(namespace, *PHASES[phase])
                await happens(cluster, api, "agent")
                await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=_PODS)
                await begun(ml, 0, 1)
            await enough(namespace, ml, "train", 2)
        await _nothing_is_lost(namespace, bio, happens)
        await _nothing_is_done_twice(namespace, phase)
    await parts.whole(api)


async def _begin(namespace: Namespace, image: str, bio: Following, happens: parts.Kill) -> None:
    """A container that starts or ends while its kubelet or containerd ends may fail: see docs/operations.md."""
    work = counting(mebibytes=LARGE, counts=None, mortal=True)
    fails = _PODS if happens in {parts.restart_kubelets, parts.restart_containerds} else 0
    await namespace.apply(indexed_job("md", "bio", image, *work, pods=_PODS, fields={"backoffLimit": fails}))
    await begun(bio, *range(_PODS), counts=5)


async def _nothing_is_lost(namespace: Namespace, bio: Following, happens: parts.Kill) -> None:
    over: dict[parts.Kill, Completed] = {
        parts.restart_kubelets: functools.partial(_completed_beside, excuses=_is_excused_by_kubelet),
        parts.restart_containerds: functools.partial(_completed_beside, excuses=_is_excused_by_containerd),
    }
    await enough(namespace, bio, "md", _PODS, completed=over.get(happens, completed))
    await all_at(namespace, "Restore", RestoreStep.ENDED, count=_PODS)
    restores = await namespace.api.objects(API_VERSION, "Restore", namespace.name)
    assert [one["metadata"]["name"] for one in restores if one["status"].get("cold", False)] == []


async def _completed_beside(namespace: Namespace, name: str, excuses: Callable[[Object], bool]) -> Object:
    """Wait until a Job is complete; all of its pods that failed are excused."""
    over = await completed_in_the_end(namespace, name)
    for pod in await namespace.api.objects("v1", "Pod", namespace.name, selector=f"job-name={name}"):
        if pod["status"]["phase"] == "Failed":
            assert excuses(pod), pod["status"]
    return over


def _is_excused_by_kubelet(pod: Object) -> bool:
    """The pod's own container was not started; a restore container that was not is started again."""
    return _UNSTARTED in _ends(pod, "containerStatuses")


def _is_excused_by_containerd(pod: Object) -> bool:
    return not {_LOST, _UNSTARTED}.isdisjoint(_ends(pod, "initContainerStatuses", "containerStatuses"))


def _ends(pod: Object, *kinds: str) -> list[tuple[int | None, str | None]]:
    statuses = [status for kind in kinds for status in pod["status"].get(kind, ())]
    ends = [status["state"].get("terminated", {}) for status in statuses]
    return [(end.get("exitCode"), end.get("reason")) for end in ends]


async def _nothing_is_done_twice(namespace: Namespace, phase: str) -> None:
    """A dump that was under way went on, and whoever came next took it up."""
    if phase == "dumping":
        reasons = {event["reason"] for event in await namespace.events()}
        assert "CheckpointFailed" not in reasons
        assert "CheckpointCommitted" in reasons
