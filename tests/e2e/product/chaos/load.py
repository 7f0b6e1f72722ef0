"""What runs while the cluster is befallen: groups that take turns, on Kueue and on Volcano, without an end.

bio's jobs count for as long as the run lasts. ml comes again and again and takes back its half, so that bio's are
preempted, also while they return. Some jobs, and once a whole namespace, are deleted in the middle of a hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import HoldStep, RestoreStep
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, is_gone, wait_for, wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container
from tests.cluster.patience import patient
from tests.e2e.product import queues, volcano_queues
from tests.e2e.product.chaos.program import ENOUGH, counting
from tests.e2e.product.chaos.world import FOR_EVER, World, insist, insist_within

KUEUE_QUOTAS = {"bio": "700m", "ml": "700m"}
_CPU = "200m"
_VOLCANO_CPU = "3"
"""Two of these fill a node of eight, but for what Kueue's pods and the system take."""
_ML_PAUSE_SECONDS = (3.0, 12.0)
_ML_SECONDS = (2, 8)
_ML_WITHIN = 240.0
_ML_COMES_AT_A_RETURN = 0.5
_OWN_POLICY_SECONDS = 10.0
_ON_ITS_WAY = {RestoreStep.WAITING, RestoreStep.STAGING, RestoreStep.RESTORING}
_ML, _GONE = "train-", "gone-"
_BACKOFF_LIMIT = 1000
"""Pods that a lost node has ended are replaced, however many: whether work was lost is judged by what they say."""


@dataclass(frozen=True)
class Sim:
    """A job of bio's that counts until the end of the run."""

    namespace: str
    name: str
    api_version: str
    pods: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class Load:
    """All of it, on one namespace for each scheduler; `running` begins it, and ends ml's coming and going."""

    world: World
    kueue: Namespace
    volcano: Namespace
    seed: int
    sims: list[Sim] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Begin with bio's jobs; inside the block the others come and go."""
        dice = random.Random(self.seed)
        for number, policy in enumerate(("Never", "OnFailure", "Never")):
            await self._begin(kueue_sim(f"sim-{number}", self.world, pods=2, restartPolicy=policy), self.kueue, 2)
        await self._begin(volcano_sim("vsim-0", self.volcano, self.world, pods=4), self.volcano, 4)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._ml(self.kueue, random.Random(dice.random()), kueue_ml), name="ml of Kueue"),
                group.create_task(self._delete_held(self.kueue), name="jobs deleted in a hold"),
            ]
            ml = self._ml(self.volcano, random.Random(dice.random()), volcano_ml)
            tasks.append(group.create_task(ml, name="ml of Volcano"))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
        await self._leave_sims()

    async def end(self) -> None:
        """Let every job of bio's that was not deleted come to its end; all must be complete.

        Raises:
            ClusterError: one is not, in time.
        """
        async with asyncio.TaskGroup() as group:
            for sim in self.sims:
                group.create_task(self._finish(sim), name=f"end of {sim.key}")

    async def _begin(self, body: Object, namespace: Namespace, pods: int) -> None:
        name = body["metadata"]["name"]
        await insist(partial(namespace.apply, body))
        self.sims.append(Sim(namespace.name, name, body["apiVersion"], pods))

    async def _ml(
        self, namespace: Namespace, dice: random.Random, job: Callable[[str, Namespace, World, int], Object]
    ) -> None:
        """Come, run for a while, and come again."""
        number = 0
        while True:
            await self._pause(namespace, dice)
            name = f"{_ML}{number}"
            body = job(name, namespace, self.world, dice.randint(*_ML_SECONDS))
            await insist(partial(namespace.apply, body))
            await insist_within(
                partial(_wait_until_over, namespace, body["apiVersion"], name), seconds=patient(_ML_WITHIN)
            )
            await insist(partial(namespace.delete, body["apiVersion"], "Job", name))
            number += 1

    async def _pause(self, namespace: Namespace, dice: random.Random) -> None:
        """For a while; every other time only until somebody is on its way back, who then is preempted again."""
        seconds = dice.uniform(*_ML_PAUSE_SECONDS)
        if dice.random() < _ML_COMES_AT_A_RETURN:
            await insist_within(partial(_wait_until_returning, namespace), seconds=seconds)
        else:
            await asyncio.sleep(seconds)  # it is the passing of time that is wanted

    @asynccontextmanager
    async def failed_replaced(self) -> AsyncIterator[None]:
        """Inside the block, pods of Volcano's jobs that have failed for a while are deleted, as a person would.

        Volcano's controller does not hear of a pod that fails while it is away itself: nobody would replace it.
        """
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._replace_failed(self.volcano), name="failed pods")
            try:
                yield
            finally:
                task.cancel()

    async def _replace_failed(self, namespace: Namespace) -> None:
        while True:
            await insist(partial(_wait_until_one_has_failed, namespace), seconds=FOR_EVER)
            await asyncio.sleep(_OWN_POLICY_SECONDS)  # its job's own policy has the first word
            for pod in await insist(partial(self.world.api.objects, "v1", "Pod", namespace.name)):
                if _has_failed(pod):
                    await insist(partial(namespace.delete, "v1", "Pod", pod["metadata"]["name"]))

    async def _leave_sims(self) -> None:
        """Delete every job but those that count until the end."""
        for namespace, api_version in self._namespaces():
            for job in await insist(partial(self.world.api.objects, api_version, "Job", namespace.name)):
                name: str = job["metadata"]["name"]
                if name.startswith((_ML, _GONE)):
                    self.world.deleted.add(f"{namespace.name}/{name}")
                    await insist(partial(namespace.delete, api_version, "Job", name))

    def _namespaces(self) -> list[tuple[Namespace, str]]:
        return [(self.kueue, "batch/v1"), (self.volcano, volcano_queues.BATCH)]

    async def _delete_held(self, namespace: Namespace) -> None:
        """Again and again: a job that is deleted the moment its eviction is held."""
        number = 0
        while True:
            name = f"{_GONE}{number}"
            await insist(partial(namespace.apply, kueue_sim(name, self.world, pods=1)))
            await insist(partial(_wait_until_held, namespace, name), seconds=FOR_EVER)
            self.world.deleted.add(f"{namespace.name}/{name}")
            await insist(partial(namespace.delete, "batch/v1", "Job", name))
            self.world.steps.say(f"chaos: Job {name} deleted while its eviction was held")
            number += 1

    async def _finish(self, sim: Sim) -> None:
        namespace = Namespace(self.world.cluster, self.world.api, sim.namespace)

        async def enough() -> None:
            body = await namespace.get(sim.api_version, "Job", sim.name)
            if not _is_complete(body):
                selector = f"job={sim.name}" if sim.api_version == "batch/v1" else f"job-name={sim.name}"
                for pod in await namespace.pods(selector, within=120):
                    await namespace.exec(pod["metadata"]["name"], "touch", ENOUGH)
            await namespace.wait(sim.api_version, "Job", sim.name, _is_complete, within=20)

        await insist(enough, seconds=180)


@asynccontextmanager
async def doomed_namespace(world: World, name: str) -> AsyncIterator[asyncio.Task[None]]:
    """A namespace with groups of its own, which is deleted while an eviction in it is held; gone when its task is."""
    metadata = {"name": name}
    await insist(lambda: world.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    namespace = Namespace(world.cluster, world.api, name)
    await insist(lambda: wait_for(world.api, "v1", "ServiceAccount", "default", lambda _: True, namespace=name))

    async def live_and_die() -> None:
        await insist(partial(namespace.apply, kueue_sim("sim", world, pods=1, cpu="800m")))
        await insist(lambda: namespace.pods("job=sim", within=120))
        train = queues.indexed_job("train", "ml", world.image, "sleep", "1")
        await insist(partial(namespace.apply, train))
        await insist(partial(_wait_until_held, namespace, "sim"), seconds=FOR_EVER)
        world.deleted.add(f"{name}/sim")
        await insist(partial(world.api.delete, "v1", "Namespace", name))
        world.steps.say(f"chaos: namespace {name} deleted while an eviction in it was held")
        await insist(gone, seconds=FOR_EVER)  # Kubernetes waits for all APIs, and faults keep Kueue's away

    async def gone() -> None:
        await wait_for(world.api, "v1", "Namespace", name, is_gone, within=60)

    try:
        async with queues.groups(namespace, {"bio": "600m", "ml": "300m"}), asyncio.TaskGroup() as group:
            yield group.create_task(live_and_die(), name=f"life and death of {name}")
    finally:
        world.deleted.add(f"{name}/sim")
        await insist(partial(world.api.delete, "v1", "Namespace", name))  # also where nothing in it was ever held
        await insist(gone)


def kueue_sim(name: str, world: World, *, pods: int, cpu: str = _CPU, restartPolicy: str = "Never") -> Object:  # noqa: N803 - the field's name
    """A Job of bio's."""
    body = queues.indexed_job(name, "bio", world.image, pods=pods, fields={"backoffLimit": _BACKOFF_LIMIT})
    spec = body["spec"]["template"]["spec"]
    spec |= counting(world.image, name, world.outside.collector, cpu=cpu)
    spec["restartPolicy"] = restartPolicy
    return body


def kueue_ml(name: str, namespace: Namespace, world: World, seconds: int) -> Object:
    """A Job of ml's that needs all that belongs to ml."""
    del namespace
    job = queues.indexed_job(name, "ml", world.image, "sleep", str(seconds), pods=3)
    job["spec"]["backoffLimit"] = _BACKOFF_LIMIT
    return job


def volcano_sim(name: str, namespace: Namespace, world: World, *, pods: int) -> Object:
    """A job of bio's for Volcano.

    Its pods begin again in place: once all of them have failed while its controller could not replace them, say because
    Kueue's webhook was away, which judges every pod's deletion, Volcano takes the whole job for failed.
    """
    fields = counting(world.image, name, world.outside.collector, cpu=_VOLCANO_CPU, index_label="volcano.sh/task-index")
    policies = [{"event": "PodFailed", "action": "RestartPod"}]  # RestartTask would end its healthy replicas too
    fields |= {"restartPolicy": "OnFailure"}
    return _vcjob(name, "bio", namespace, fields, pods=pods, policies=policies, maxRetry=_BACKOFF_LIMIT)


def volcano_ml(name: str, namespace: Namespace, world: World, seconds: int) -> Object:
    """A job of ml's for Volcano, of half the cluster."""
    main = container(world.image, "sleep", str(seconds), resources={"requests": {"cpu": _VOLCANO_CPU}})
    return _vcjob(name, "ml", namespace, {"containers": [main]}, pods=2, minAvailable=2)


def _vcjob(name: str, queue: str, namespace: Namespace, fields: Mapping[str, Any], *, pods: int, **spec: Any) -> Object:
    task = volcano_queues.task("sim", name, "none", pods=pods)
    task["template"]["spec"] |= fields
    return volcano_queues.vcjob_of(name, queue, namespace, task, **{"minAvailable": 1, **spec})


async def _wait_until_held(namespace: Namespace, job: str) -> None:
    def holds(found: list[Object]) -> bool:
        return any(
            one["spec"].get("heldObjectRef", {}).get("name") == job
            and one.get("status", {}).get("step") == HoldStep.HOLDING
            for one in found
        )

    await wait_for_all(namespace.api, API_VERSION, "PreemptionHold", holds, namespace=namespace.name, within=3600)


async def _wait_until_returning(namespace: Namespace) -> None:
    def returns(found: list[Object]) -> bool:
        return any(one.get("status", {}).get("step") in _ON_ITS_WAY for one in found)

    await wait_for_all(namespace.api, API_VERSION, "Restore", returns, namespace=namespace.name, within=3600)


async def _wait_until_one_has_failed(namespace: Namespace) -> None:
    await wait_for_all(
        namespace.api, "v1", "Pod", lambda pods: any(map(_has_failed, pods)), namespace=namespace.name, within=3600
    )


def _has_failed(pod: Object) -> bool:
    return pod["status"].get("phase") == "Failed" and "deletionTimestamp" not in pod["metadata"]


async def _wait_until_over(namespace: Namespace, api_version: str, name: str) -> None:
    await namespace.wait(api_version, "Job", name, _is_over, within=_ML_WITHIN)


def _is_complete(body: Object) -> bool:
    return _state(body) in {"Complete", "Completed"}


def _is_over(body: Object) -> bool:
    return _state(body) in {"Complete", "Completed", "Failed", "Aborted", "Terminated"}


def _state(body: Object) -> str:
    """How it ended, as its scheduler calls that; empty while it has not."""
    if body["apiVersion"] == volcano_queues.BATCH:
        return str(body.get("status", {}).get("state", {}).get("phase", ""))
    return next((state for state in ("Complete", "Failed") if has_condition(state)(body)), "")
