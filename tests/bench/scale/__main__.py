"""Measure how the product behaves at scale: `make bench-scale`.

    python -m tests.bench.scale [--nodes 1000] [--sizes 100:20 1000:200 5000:1000] [--repeat 3] [--no-watches]
                                [--kept build/bench-scale.json] [--write docs/scale.md]

A real API server, scheduler, Kueue, coordinator and webhooks; fake nodes (kwok), and on each the product's own order
feed, which answers at once. Everything shares this machine's processors: what is to be kept are the numbers of writes,
and how the rest grows from one size to the next. Of what is not measured now, what was kept of an earlier run is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import HoldStep
from tests.bench.page import replace_measured
from tests.bench.running import running_cluster
from tests.bench.scale import field, usage, watchers
from tests.bench.scale.agents import Agents
from tests.bench.scale.field import Size
from tests.bench.scale.figures import Figures, Used, figures_of, row
from tests.bench.scale.report import Found, Load, report
from tests.bench.scale.watchers import WatchCost
from tests.bench.scale.webhook_load import answer_times
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


class Run(msgspec.Struct, frozen=True):
    """What is to be measured; `keep` is called after each measurement, because a run of an hour may end early."""

    found: Found
    watches: bool
    sizes: Sequence[Size]
    repeat: int
    steps: Steps
    keep: Callable[[], None]

    @property
    def each(self) -> list[Size]:
        """The sizes, each as often as it is measured."""
        return [size for size in self.sizes for _ in range(self.repeat if size.pods < _LARGE else 1)]


async def measure(run: Run) -> None:
    """What watches cost; then preemptions of each size on one cluster, and before each, the webhooks under a load."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(["kwok", "kueue"], run.steps))
        api = await stack.enter_async_context(cluster.api())
        if run.watches:
            with run.steps.step("cost of watches"):
                run.found.watches = await _watches(cluster, api, run.steps)
            run.keep()
        if run.sizes:
            await stack.enter_async_context(_installed(cluster, api, run))
        for size in run.each:
            with run.steps.step(f"{size.pods} pods, {size.victims} victims"):
                figures, load = await _one(cluster, api, size)
            run.found.sizes.setdefault(size.pods, []).append(figures)
            run.found.webhooks.append(load)
            run.steps.say(" | ".join(row([figures])))
            run.steps.say(load.in_words())
            run.keep()


@asynccontextmanager
async def _installed(cluster: Cluster, api: Api, run: Run) -> AsyncIterator[None]:
    """The product, fake nodes, and an agent on each."""
    await install(cluster, ["kwok", "kueue"], run.steps)
    changes = {"kueue": {"enabled": True}, "log": {"level": "info"}, "agent": {"nodeSelector": field.REAL}}
    async with (
        s3_server.running(cluster, api, run.steps) as s3,
        installation.installed(cluster, api, s3, run.steps, **changes),
    ):
        with run.steps.step(f"{run.found.nodes} fake nodes"):
            nodes = await kwok.add_nodes(cluster, run.found.nodes, within=600)
        async with Agents().on(cluster.kubeconfig, nodes):
            run.steps.say(f"{run.found.nodes} agents serve")
            yield


async def _watches(cluster: Cluster, api: Api, steps: Steps) -> list[WatchCost]:
    await installation.define_kinds(api, await ensure(TOOL, steps=steps))
    async with Namespace.created(cluster, api, f"scale-{uuid.uuid4().hex[:6]}") as namespace:
        return await watchers.measured(cluster, namespace.name, steps)


async def _one(cluster: Cluster, api: Api, size: Size) -> tuple[Figures, Load]:
    async with (
        Namespace.created(cluster, api, f"scale-{uuid.uuid4().hex[:6]}", gone_within=_GONE_WITHIN) as namespace,
        field.running(namespace, size, within=_RUN_WITHIN),
    ):
        load = await _load(cluster, api, namespace)
        audit = Audit(cluster.control_plane.audit_log)
        before = Used.now(cluster)
        await field.reclaim(namespace, size)
        jobs = size.victims // field.PODS_OF_A_JOB
        await wait_for_all(
            api, API_VERSION, "PreemptionHold",
            lambda holds: sum(one.get("status", {}).get("step") == HoldStep.RELEASED for one in holds) >= jobs,
            namespace=namespace.name, within=_RELEASED_WITHIN,
        )  # fmt: skip
        return figures_of(audit, namespace.name, size.pods, size.victims, before, Used.now(cluster)), load


async def _load(cluster: Cluster, api: Api, namespace: Namespace) -> Load:
    before = usage.webhooks(cluster)
    times = await answer_times(cluster.place.namespace, *await _webhook(api), namespace.name)
    return Load(times, usage.webhooks(cluster).since(before))


async def _webhook(api: Api) -> tuple[str, int]:
    """Address and port of one replica of the webhooks."""
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=webhooks")
    pod = next(one for one in pods if one["status"].get("podIP"))
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    return pod["status"]["podIP"], ports["https"]


def _size(text: str) -> Size:
    pods, _, victims = text.partition(":")
    return Size(int(pods), int(victims))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--sizes", nargs="*", type=_size, default=[Size(100, 20), Size(1000, 200), Size(5000, 1000)])
    parser.add_argument("--repeat", type=int, default=3, help=f"of sizes below {_LARGE:,} pods")
    parser.add_argument("--watches", action=argparse.BooleanOptionalAction, default=True, help="measure what they cost")
    parser.add_argument("--kept", type=Path, default=Path("build/bench-scale.json"), help="all that was measured")
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    found = _earlier(arguments.kept, arguments.nodes, arguments.sizes)
    run = Run(
        found, arguments.watches, arguments.sizes, arguments.repeat, Steps(), partial(_keep, arguments.kept, found)
    )
    if run.watches or run.sizes:
        asyncio.run(measure(run))
    text = report(found)
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


def _earlier(kept: Path, nodes: int, sizes: Sequence[Size]) -> Found:
    """What was kept of another run, but for what is measured now; of as many nodes, where their number matters."""
    if not kept.exists():
        return Found(nodes)
    found = msgspec.json.decode(kept.read_bytes(), type=Found)
    if found.nodes != nodes:
        return Found(nodes, watches=found.watches)
    for size in sizes:
        found.sizes.pop(size.pods, None)
    return found


def _keep(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
