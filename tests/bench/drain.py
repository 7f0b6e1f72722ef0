"""Measure a drain of a node with several pods, with the product and without it, on one cluster: `make bench-drain`.

    python -m tests.bench.drain [--pods 6] [--repetitions 3] [--write docs/bench-drain.md]

The cluster is that of CLUSTER_NAME, brought up if it is not. Whether the namespace is protected is all that differs
between the columns; the cases alternate, so that what slows the machine down slows all of them down.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cedana_sched.model.objects.names import API_VERSION, PROTECT
from tests.bench.drain_report import Drain, report
from tests.bench.page import replace_measured
from tests.bench.preemption import ENDS_AT_ONCE, GRACE_SECONDS, IGNORES_SIGTERM
from tests.bench.report import machine
from tests.bench.running import running_product
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.images.catalog import find_images
from tests.cluster.steps import Steps
from tests.e2e.product.cordoning import cordoned

PROGRAMS: Final = {"ends at SIGTERM": ENDS_AT_ONCE, "ignores SIGTERM": IGNORES_SIGTERM}
_NAME: Final = "md"
_SELECTOR: Final = f"app={_NAME}"
_WITHIN: Final = 240
"""Seconds for each wait."""


async def measure(pods: int, repetitions: int, steps: Steps, keep: Callable[[Drain], None]) -> None:
    """Drain a node in every case in turn, again and again.

    Args:
        pods: how many run on the node.
        repetitions: of every case.
        steps: shows every case.
        keep: takes what was measured.
    """
    async with running_product(steps, kubernetes={"enabled": True}) as (cluster, api, _):
        cases = [(program, protected) for program in PROGRAMS for protected in (False, True)]
        for number, (program, protected) in enumerate(cases * repetitions):
            what = f"{1 + number // len(cases)}: {program}, {'with' if protected else 'without'} us"
            with steps.step(what):
                keep(await _one(cluster, api, pods, program, protected=protected))


async def _one(cluster: Cluster, api: Api, pods: int, program: str, *, protected: bool) -> Drain:
    labels = {PROTECT: "true"} if protected else None
    node, *others = cluster.nodes
    async with Namespace.created(cluster, api, f"bench-{uuid.uuid4().hex[:8]}", labels) as namespace:
        async with cordoned(namespace, *others):
            await namespace.apply(_deployment(pods, PROGRAMS[program]))
            before = await _run(namespace, pods, set())
        began = time.monotonic()
        try:
            await namespace.kubectl(
                "drain", node, f"--pod-selector={_SELECTOR}", "--delete-emptydir-data", f"--timeout={_WITHIN}s"
            )
            returned = time.monotonic() - began
            await _run(namespace, pods, before)
            running = time.monotonic() - began
        finally:
            await namespace.kubectl("uncordon", node)
        checkpoints = await api.objects(API_VERSION, "Checkpoint", namespace.name)
        saved = sum(one.get("status", {}).get("phase") == "Ready" for one in checkpoints)
        if saved != (pods if protected else 0):
            raise RuntimeError(f"{program}: {saved} of {pods} pods were saved, protected is {protected}")
        return Drain(pods, program, protected, returned, running)


def _deployment(pods: int, program: str) -> Object:
    main = container(
        find_images()["toolbox"].tag, "python3", "-c", program, resources={"requests": {"cpu": "10m"}},
        readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 1},
    )  # fmt: skip
    spec = pod(_NAME, main, restartPolicy="Always", terminationGracePeriodSeconds=GRACE_SECONDS)["spec"]
    selected = {"app": _NAME}
    template = {"metadata": {"labels": selected}, "spec": spec}
    body = {"replicas": pods, "selector": {"matchLabels": selected}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": _NAME}, "spec": body}


async def _run(namespace: Namespace, pods: int, others: set[str]) -> set[str]:
    """Wait until so many pods that are none of the others are ready; their uids."""

    def ready(found: list[Object]) -> set[str]:
        return {one["metadata"]["uid"] for one in found if _is_ready(one)} - others

    found = await wait_for_all(
        namespace.api, "v1", "Pod", lambda found: len(ready(found)) == pods,
        namespace=namespace.name, selector=_SELECTOR, within=_WITHIN,
    )  # fmt: skip
    return ready(found)


def _is_ready(body: Object) -> bool:
    conditions = body["status"].get("conditions", [])
    return "deletionTimestamp" not in body["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    drains: list[Drain] = []
    asyncio.run(measure(arguments.pods, arguments.repetitions, Steps(), drains.append))
    load = f"load average {os.getloadavg()[2]:.0f}: the cluster's own and whatever else ran"
    text = f"{machine()}, {load}\n\n{report(drains)}\n"
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


if __name__ == "__main__":
    main()
