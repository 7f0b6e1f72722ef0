"""One pod that counts, of each kind of controller, and how to see that its work went on in another pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, job, pod
from tests.cluster.patience import patient
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.following import Following

NAME: Final = "md"
LABEL: Final = "app"
JOBSET: Final = "jobset.x-k8s.io/v1alpha2"
_SELECTED: Final = {LABEL: NAME}
_GOES_ON: Final = 10
"""Counts of the second pod after which the work has gone on."""


def _template(image: str, **spec: Any) -> Object:
    main = container(image, *counting(counts=None), resources={"requests": {"cpu": "100m"}})
    return {"metadata": {"labels": _SELECTED}, "spec": pod(NAME, main, **spec)["spec"]}


def plain_job(image: str, *, replicas: int = 1, **fields: Any) -> Object:
    """A Job that fails as soon as one of its pods does."""
    numbers = {"completions": replicas, "parallelism": replicas}
    body = job(NAME, container(image), fields={"backoffLimit": 0, **numbers, **fields})
    body["spec"]["template"] = _template(image)
    return body


def indexed_job(image: str, *, replicas: int = 1) -> Object:
    return plain_job(image, replicas=replicas, completionMode="Indexed")


def deployment(image: str, *, replicas: int = 1) -> Object:
    return _of_apps("Deployment", image, replicas=replicas)


def stateful_set(image: str, *, replicas: int = 1) -> Object:
    return _of_apps("StatefulSet", image, serviceName=NAME, replicas=replicas)


def _of_apps(kind: str, image: str, **spec: Any) -> Object:
    template = _template(image, restartPolicy="Always")
    body = {"selector": {"matchLabels": _SELECTED}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": NAME}, "spec": body}


def job_set(image: str, *, replicas: int = 1) -> Object:
    """One Job, which JobSet makes, and makes no second time should it fail."""
    jobs = [{"name": "main", "replicas": 1, "template": {"spec": indexed_job(image, replicas=replicas)["spec"]}}]
    spec = {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 0}}
    return {"apiVersion": JOBSET, "kind": "JobSet", "metadata": {"name": NAME}, "spec": spec}


class Owner(Protocol):
    def __call__(self, image: str, *, replicas: int = 1) -> Object: ...


OWNERS: Final[dict[str, Owner]] = {
    "Job": plain_job,
    "Indexed Job": indexed_job,
    "Deployment": deployment,
    "StatefulSet": stateful_set,
    "JobSet": job_set,
}


@asynccontextmanager
async def counting_pod(namespace: Namespace, owner: Object) -> AsyncIterator[Following]:
    """The owner's pod, which has counted for a while."""
    async with Following.of(namespace, NAME, label=LABEL) as following:
        await namespace.apply(owner)
        await asyncio.wait_for(following.said(0, 20), patient(120))
        yield following


async def continued(namespace: Namespace, following: Following, pods: int = 2) -> None:
    """Wait until the last of so many pods counts on; each number must have been said once, and no pod have failed."""
    await wait_counts(following, pods)
    lines = following.lines(0)
    assert lines == [str(number) for number in range(len(lines))], following.by_pod(0)
    await assert_none_failed(namespace)


async def continued_from_snapshot(namespace: Namespace, following: Following) -> None:
    """Wait until the second pod counts on: not from the beginning, and without a gap."""
    await begun(following, 0, counts=len(following.lines(0)) + 30)
    first, second = (list(map(int, lines)) for lines in following.by_pod(0))
    assert 0 < second[0] <= first[-1] + 1
    assert second == list(range(second[0], second[0] + len(second)))
    await assert_none_failed(namespace)


async def assert_never_twice(namespace: Namespace, following: Following) -> None:
    """Whatever took the first pod away is over: the pod that continues does so still, and is the only one."""
    await asyncio.wait_for(following.said(0, len(following.lines(0)) + _GOES_ON), patient(60))
    (pod,) = await wait_for_all(  # the kubelet of a node that is back reports the end of the lost one
        namespace.api, "v1", "Pod", _is_one, namespace=namespace.name, selector=f"{LABEL}={NAME}"
    )
    assert pod["metadata"]["name"] == following.pods[0][-1]
    assert len(following.pods[0]) == 2
    await assert_none_failed(namespace)


def _is_one(pods: list[Object]) -> bool:
    return len(pods) == 1


async def assert_none_failed(namespace: Namespace) -> None:
    """No Job of the namespace counts a failed pod."""
    jobs = await namespace.api.objects("batch/v1", "Job", namespace.name)
    assert [one["status"].get("failed", 0) for one in jobs] == [0 for _ in jobs], [one["status"] for one in jobs]


async def wait_counts(following: Following, pods: int = 2) -> None:
    """Wait until the last of so many pods has counted for a while."""
    async with asyncio.timeout(patient(120)):
        count = 1
        while len(by_pod := following.by_pod(0)) < pods or len(by_pod[-1]) < _GOES_ON:
            count = max(count + 1, len(following.lines(0)) + 1)
            await following.said(0, count)
