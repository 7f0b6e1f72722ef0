"""Measure how the product behaves at scale: `make bench-scale`.

    python -m tests.bench.scale [--sizes 100:20:1000 1000:200:1000 5000:1000:250] [--repeat 3] [--no-watches]
                                [--kept build/bench-scale.json] [--write docs/scale.md]

A real API server, scheduler, Kueue, coordinator and webhooks; fake nodes (kwok), and on each the product's own order
feed, which answers at once. Everything shares this machine's processors: what is to be kept are the numbers of writes,
and how the rest grows from one size to the next. Of what is not measured now, what was kept of an earlier run is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cedana_sched.model.objects.names import API_VERSION, NODE_FACTS
from cedana_sched.model.records import HoldStep
from tests.bench.page import replace_measured
from tests.bench.running import running_cluster
from tests.bench.scale import bare_client, field, usage, watchers
from tests.bench.scale.agents import Agents
from tests.bench.scale.field import Size
from tests.bench.scale.figures import Figures, Used, figures_of, row
from tests.bench.scale.report import Found, Load, report
from tests.bench.scale.watchers import WatchCost
from tests.bench.scale.webhook_load import answers
from tests.cluster.addons import kwok
from tests.cluster.addons.catalog import install
from tests.cluster.addons.charts import TOOL
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.binaries.build import ensure
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.product import installation, s3_server
from tests.e2e.product.rendering import NAMESPACE

_RELEASED_WITHIN = 600.0
_RUN_WITHIN = 1200.0
_GONE_WITHIN = 900.0
_LARGE = 5000
"""Pods: so many take their time, and are had once."""
_SIZES = (Size(100, 20, 1000), Size(1000, 200, 1000), Size(_LARGE, 1000, 250))
"""The largest on fewer nodes: beside the heartbeats and watches of a thousand, two processors do not have it."""


class Run(msgspec.Struct, frozen=True):
    """What is to be measured; `keep` is called after each measurement, because a run of an hour may end early."""

    found: Found
    watches: bool
    sizes: Sequence[Size]
    repeat: int
    steps: Steps
    keep: Callable[[], None]

    def of(self, nodes: int) -> list[Size]:
        """The sizes on so many nodes, each as often as it is measured."""
        sizes = [size for size in self.sizes if size.nodes == nodes]
        return [size for size in sizes for _ in range(self.repeat if size.pods < _LARGE else 1)]


async def measure(run: Run) -> None:
    """What watches cost; then, on one cluster for each number of nodes, preemptions of each size."""
    if run.watches:
        async with running_cluster([], run.steps) as cluster, cluster.api() as api:
            with run.steps.step("cost of watches"):
                run.found.watches = await _watches(cluster, api, run.steps)
        run.keep()
    for nodes in sorted({size.nodes for size in run.sizes}, reverse=True):
        async with (
            running_cluster(["kwok", "kueue"], run.steps) as cluster,
            cluster.api() as api,
            _installed(cluster, api, nodes, run.steps),
        ):
            for size in run.of(nodes):
                await _measure_size(cluster, api, size, run)


async def _measure_size(cluster: Cluster, api: Api, size: Size, run: Run) -> None:
    """One preemption; it is kept before its pods are removed, which a slow API server may not do in time."""
    with run.steps.step(f"{size.pods} pods, {size.victims} victims"):
        async with (
            Namespace.created(cluster, api, f"scale-{uuid.uuid4().hex[:6]}", gone_within=_GONE_WITHIN) as namespace,
            field.running(namespace, size, within=_RUN_WITHIN),
        ):
            load = await _load(cluster, api, namespace, size.pods)
            figures = await _preempted(cluster, api, namespace, size)
            run.found.sizes.setdefault(size.pods, []).append(figures)
            run.found.webhooks.append(load)
            run.steps.say(" | ".join(row([figures])))
            run.steps.say(load.in_words())
            run.keep()


@asynccontextmanager
async def _installed(cluster: Cluster, api: Api, nodes: int, steps: Steps) -> AsyncIterator[None]:
    """The product, fake nodes, and an agent on each."""
    await install(cluster, ["kwok", "kueue"], steps)
    changes: dict[str, Any] = {
        "kueue": {"enabled": True},
        "log": {"level": "info"},
        "agent": {"nodeSelector": field.REAL},
        "metrics": {"authentication": {"enabled": False}},  # the load on the webhooks reads them
    }
    async with (
        s3_server.running(cluster, api, steps) as s3,
        installation.installed(cluster, api, s3, steps, **changes),
    ):
        with steps.step(f"{nodes} fake nodes"):
            facts = {NODE_FACTS: "{}"}  # by which the coordinator finds that there is an agent
            names = await kwok.add_nodes(cluster, nodes, annotations=facts, within=600)
        await bare_client.define_twin(api)
        async with Agents().on(cluster.kubeconfig, names):
            steps.say(f"{nodes} agents serve")
            yield


async def _watches(cluster: Cluster, api: Api, steps: Steps) -> list[WatchCost]:
    await installation.define_kinds(api, await ensure(TOOL, steps=steps))
    async with Namespace.created(cluster, api, f"scale-{uuid.uuid4().hex[:6]}") as namespace:
        return await watchers.measure(cluster, namespace.name, steps)


async def _preempted(cluster: Cluster, api: Api, namespace: Namespace, size: Size) -> Figures:
    bare_seconds = await bare_client.creation_seconds(cluster, namespace.name, size.victims)
    audit = Audit(cluster.control_plane.audit_log)
    before = Used.now(cluster)
    await field.reclaim(namespace, size)
    jobs = size.victims // field.PODS_OF_A_JOB
    await wait_for_all(
        api, API_VERSION, "PreemptionHold",
        lambda holds: sum(one.get("status", {}).get("step") == HoldStep.RELEASED for one in holds) >= jobs,
        namespace=namespace.name, within=_RELEASED_WITHIN,
    )  # fmt: skip
    return figures_of(audit, namespace.name, size, bare_seconds, before, Used.now(cluster))


async def _load(cluster: Cluster, api: Api, namespace: Namespace, pods: int) -> Load:
    before = usage.webhooks(cluster)
    found = await answers(cluster.place.namespace, *await _webhook(api), namespace.name, await _segment(api))
    return Load(found, usage.webhooks(cluster).since(before), pods)


async def _webhook(api: Api) -> tuple[str, int, int]:
    """Address and ports of one replica of the webhooks: of admission, and of operations."""
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=webhooks")
    pod = next(one for one in pods if one["status"].get("podIP"))
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    return pod["status"]["podIP"], ports["https"], ports["operations"]


async def _segment(api: Api) -> str:
    """By which the webhooks know the API server."""
    secret = await api.get("v1", "Secret", "cedana-sched-webhooks", NAMESPACE)
    return base64.b64decode(secret["data"]["path"]).decode()


def _size(text: str) -> Size:
    pods, victims, nodes = map(int, text.split(":"))
    return Size(pods, victims, nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=_size, default=_SIZES, help="pods:victims:nodes")
    parser.add_argument("--repeat", type=int, default=3, help=f"of sizes below {_LARGE:,} pods")
    parser.add_argument("--watches", action=argparse.BooleanOptionalAction, default=True, help="measure what they cost")
    parser.add_argument("--kept", type=Path, default=Path("build/bench-scale.json"), help="all that was measured")
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    found = _earlier(arguments.kept, arguments.sizes)
    run = Run(
        found, arguments.watches, arguments.sizes, arguments.repeat, Steps(), partial(_keep, arguments.kept, found)
    )
    if run.watches or run.sizes:
        asyncio.run(measure(run))
    text = report(found)
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


def _earlier(kept: Path, sizes: Sequence[Size]) -> Found:
    """What was kept of another run, but for what is measured now."""
    if not kept.exists():
        return Found()
    found = msgspec.json.decode(kept.read_bytes(), type=Found)
    for size in sizes:
        found.sizes.pop(size.pods, None)
    found.webhooks = [load for load in found.webhooks if load.pods not in {size.pods for size in sizes}]
    return found


def _keep(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
