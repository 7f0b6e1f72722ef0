"""Measure how the product behaves at scale: `make bench-scale`.

    python -m tests.bench.scale [--nodes 1000] [--sizes 100:50 1000:200 5000:1000] [--write docs/scale.md]

A real API server, scheduler, Kueue, coordinator and webhooks; fake nodes (kwok), and on each the product's own order
feed, which answers at once. Everything shares this machine's processors: what is to be kept are the numbers of writes,
and how the rest grows from one size to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import HoldStep
from tests.bench.page import replace_measured
from tests.bench.report import machine
from tests.bench.scale import field
from tests.bench.scale.agents import Agents
from tests.bench.scale.coordinator import usage
from tests.bench.scale.field import Size
from tests.bench.scale.figures import HEADS, Figures, figures_of, row
from tests.bench.scale.webhook_load import Load, answer_times
from tests.cluster import lifetime, settings
from tests.cluster.addons import kwok
from tests.cluster.addons.catalog import install
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.bring_up import bring_up
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.product import installation, s3_server
from tests.e2e.product.rendering import NAMESPACE

_RELEASED_WITHIN = 600.0
_RUN_WITHIN = 1200.0


async def measure(nodes: int, sizes: Sequence[Size], steps: Steps) -> tuple[list[Figures], Load]:
    """One preemption of each size on one cluster; at the largest one, what the webhooks do under a steady load."""
    async with AsyncExitStack() as stack:
        name = settings.cluster_name()
        cluster = await bring_up(settings.kind_config(), name, ["kwok", "kueue"], steps)
        if not settings.is_kept():
            stack.push_async_callback(lifetime.take_down, name)
        api = await stack.enter_async_context(cluster.api())
        s3 = await stack.enter_async_context(s3_server.running(cluster, api, steps))
        product = await stack.enter_async_context(installation.installed(cluster, api, s3, steps))
        await install(cluster, ["kueue"], steps)
        await product.ensure(kueue={"enabled": True}, log={"level": "info"})
        with steps.step(f"{nodes} fake nodes"):
            names = await kwok.add_nodes(cluster, nodes, within=600)
        with steps.step(f"{nodes} agents"):
            await stack.enter_async_context(Agents().on(cluster.kubeconfig, names))
        found = []
        load = Load((), 0)
        for size in sizes:
            with steps.step(f"{size.pods} pods, {size.victims} victims"):
                figures, load = await _one(cluster, api, size)
                found.append(figures)
                steps.say(" | ".join(row(figures)))
    return found, load


async def _one(cluster: Cluster, api: Api, size: Size) -> tuple[Figures, Load]:
    async with (
        Namespace.created(cluster, api, f"scale-{uuid.uuid4().hex[:6]}") as namespace,
        field.running(namespace, size, within=_RUN_WITHIN),
    ):
        load = await answer_times(cluster.place.namespace, *await _webhook(api), namespace.name)
        audit = Audit(cluster.control_plane.audit_log)
        before = await usage(cluster, api)
        await field.reclaim(namespace, size)
        jobs = size.victims // field.PODS_OF_A_JOB
        await wait_for_all(
            api, API_VERSION, "PreemptionHold",
            lambda holds: sum(one.get("status", {}).get("step") == HoldStep.RELEASED for one in holds) >= jobs,
            namespace=namespace.name, within=_RELEASED_WITHIN,
        )  # fmt: skip
        return figures_of(audit, namespace.name, size.pods, size.victims, before, await usage(cluster, api)), load


async def _webhook(api: Api) -> tuple[str, int]:
    """Address and port of one replica of the webhooks."""
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=webhooks")
    pod = next(one for one in pods if one["status"].get("podIP"))
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    return pod["status"]["podIP"], ports["https"]


def _table(found: Sequence[Figures]) -> str:
    lines = [f"| {' | '.join(HEADS)} |", "|---|" + "---:|" * (len(HEADS) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row(one))} |" for one in found)])


def _size(text: str) -> Size:
    pods, _, victims = text.partition(":")
    return Size(int(pods), int(victims))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument(
        "--sizes", nargs="+", type=_size, default=[_size("100:50"), _size("1000:200"), _size("5000:1000")]
    )
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    found, load = asyncio.run(measure(arguments.nodes, arguments.sizes, Steps()))
    text = f"{machine()}, {arguments.nodes:,} nodes\n\n{_table(found)}\n\n{load}\n"
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


if __name__ == "__main__":
    main()
