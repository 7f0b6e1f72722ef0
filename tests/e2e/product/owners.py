"""One pod that counts, of each kind of controller, and how to see that its work went on in another pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace, container, job, pod
from tests.cluster.patience import patient
from tests.e2e.product.counting import counting
from tests.e2e.product.following import Following

NAME: Final = "md"
LABEL: Final = "app"
_SELECTED: Final = {LABEL: NAME}
_GOES_ON: Final = 10
"""Counts of the second pod after which the work has gone on."""


def _template(image: str, cpu: str, **spec: Any) -> Object:
    main = container(image, *counting(counts=None), resources={"requests": {"cpu": cpu}})
    return {"metadata": {"labels": _SELECTED}, "spec": pod(NAME, main, **spec)["spec"]}


def plain_job(image: str, cpu: str = "100m", **fields: Any) -> Object:
    """A Job that fails as soon as its pod does."""
    body = job(NAME, container(image), fields={"backoffLimit": 0, **fields})
    body["spec"]["template"] = _template(image, cpu)
    return body


def indexed_job(image: str, cpu: str = "100m") -> Object:
    return plain_job(image, cpu, completionMode="Indexed", completions=1, parallelism=1)


def deployment(image: str, cpu: str = "100m", replicas: int = 1) -> Object:
    return _of_apps("Deployment", image, cpu, replicas=replicas)


def stateful_set(image: str, cpu: str = "100m") -> Object:
    return _of_apps("StatefulSet", image, cpu, serviceName=NAME, replicas=1)


def _of_apps(kind: str, image: str, cpu: str, **spec: Any) -> Object:
    template = _template(image, cpu, restartPolicy="Always")
    body = {"selector": {"matchLabels": _SELECTED}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": NAME}, "spec": body}


OWNERS: Final[dict[str, Callable[[str], Object]]] = {
    "Job": plain_job,
    "Indexed Job": indexed_job,
    "Deployment": deployment,
    "StatefulSet": stateful_set,
}


@asynccontextmanager
async def counting_pod(namespace: Namespace, owner: Object) -> AsyncIterator[Following]:
    """The owner's pod, which has counted for a while."""
    async with Following.of(namespace, NAME, label=LABEL) as following:
        await namespace.apply(owner)
        await asyncio.wait_for(following.said(0, 20), patient(120))
        yield following


async def continued(namespace: Namespace, following: Following, owner: Object, pods: int = 2) -> None:
    """Wait until the last of so many pods counts on; each number must have been said once, and no pod have failed."""
    await asyncio.wait_for(_goes_on(following, pods), patient(120))
    lines = following.lines(0)
    assert lines == [str(number) for number in range(len(lines))], following.by_pod(0)
    if owner["kind"] == "Job":
        now = await namespace.get("batch/v1", "Job", NAME)
        assert now["status"].get("failed", 0) == 0, now["status"]


async def _goes_on(following: Following, pods: int) -> None:
    count = 1
    while len(by_pod := following.by_pod(0)) < pods or len(by_pod[-1]) < _GOES_ON:
        count = max(count + 1, len(following.lines(0)) + 1)
        await following.said(0, count)
