"""Measure how long a preemptor waits, with the product and without it, on one cluster: `make bench-cluster`.

    python -m tests.bench.cluster [--pods-per-node 1 2] [--repetitions 5] [--write docs/bench-cluster.md]

The cluster is that of CLUSTER_NAME, brought up if it is not. Whether a ClusterQueue names our AdmissionCheck is all
that differs between the columns. Absolute times belong to the machine; the differences are what to keep.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from tests.bench.page import replace_measured
from tests.bench.preemption import ENDS_AT_ONCE, IGNORES_SIGTERM, SLOT, Timeline, preempt
from tests.bench.report import machine
from tests.cluster import lifetime, settings
from tests.cluster.addons.catalog import install
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import wait_for
from tests.cluster.bring_up import bring_up, lay_images
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.images.catalog import find_images
from tests.cluster.steps import Steps
from tests.e2e.product import installation, s3_server

CHECK = "checkpoint-restore"
VICTIMS = {"ignores SIGTERM, 30 s of grace": IGNORES_SIGTERM, "ends at SIGTERM": ENDS_AT_ONCE}
Results = Mapping[tuple[str, bool], Sequence[Timeline]]
"""By what the victim does, and whether its queue names our check."""

_STEPS = {
    "evicted": "… Kueue has marked the victim",
    "frozen": "… its pods are frozen",
    "committed": "… their snapshots are committed",
    "released": "… the eviction is released",
    "suspended": "… the victim's Job is suspended",
    "deleted": "… its pods are deleted",
    "admitted": "… the preemptor is admitted",
    "ended": "… the victim's pods are gone",
    "bound": "… the preemptor's pods have their nodes",
    "running": "**the preemptor's pods are Running**",
}


async def measure(repetitions: int, sizes: Sequence[int], steps: Steps) -> dict[int, Results]:
    """Every case in turn, again and again: what slows the machine down slows all of them down.

    Args:
        repetitions: of every case.
        sizes: how many pods of the victim run on each of the two nodes.
        steps: hears of every case.
    """
    async with AsyncExitStack() as stack:
        cluster = await _cluster(stack, steps)
        api = await stack.enter_async_context(cluster.api())
        await install(cluster, ["kueue"], steps)
        await lay_images(cluster, steps)
        s3 = await stack.enter_async_context(s3_server.running(cluster, api, steps))
        product = await stack.enter_async_context(installation.installed(cluster, api, s3, steps))
        await product.install(kueue={"enabled": True})
        results: dict[int, dict[tuple[str, bool], list[Timeline]]] = {size: {} for size in sizes}
        for size in sizes:
            await _offer_slots(api, size)
            for repetition in range(1, repetitions + 1):
                for victim, program in VICTIMS.items():
                    for protected in (False, True):
                        what = f"{repetition}: {2 * size} pods, {victim}, {'with' if protected else 'without'} us"
                        with steps.step(what):
                            measured = await _one(cluster, api, program, size, CHECK if protected else None)
                        results[size].setdefault((victim, protected), []).append(measured)
        return dict(results)


async def _cluster(stack: AsyncExitStack, steps: Steps) -> Cluster:
    name = settings.cluster_name()
    if lifetime.is_up(name):
        return await Cluster.attach(name, steps)
    cluster = await bring_up(settings.kind_config(), name, settings.addons(), steps)
    stack.push_async_callback(lifetime.take_down, name)
    return cluster


async def _offer_slots(api: Api, per_node: int) -> None:
    offered = {SLOT: str(per_node)}
    for node in await api.objects("v1", "Node"):
        name = node["metadata"]["name"]
        await api.patch("v1", "Node", name, {"status": {"capacity": offered}}, subresource="status")
        await wait_for(api, "v1", "Node", name, lambda body: offered.items() <= body["status"]["allocatable"].items())


async def _one(cluster: Cluster, api: Api, program: str, slots: int, check: str | None) -> Timeline:
    audit = Audit(cluster.control_plane.audit_log)
    async with Namespace.created(cluster, api, f"bench-{uuid.uuid4().hex[:8]}") as namespace:
        return await preempt(namespace, find_images()["toolbox"].tag, program, slots, check=check, audit=audit)


def table(results: Results) -> str:
    """Markdown: medians of every step, a column for each case, and what they say against the aims."""
    columns = [(victim, protected) for victim in VICTIMS for protected in (False, True)]
    heads = [f"{victim}: {'with' if protected else 'without'} us" for victim, protected in columns]
    repetitions = len(results[columns[0]])
    lines = [f"| seconds after the preemptor's creation, median of {repetitions} | {' | '.join(heads)} |"]
    lines += ["|---|" + "---:|" * len(heads)]
    for step, words in _STEPS.items():
        medians = [_median(results[column], step) for column in columns]
        lines.append(f"| {words} | {' | '.join('-' if one is None else f'{one:.2f}' for one in medians)} |")
    spreads = [_spread(results[column]) for column in columns]
    lines.append(f"| … fastest to slowest | {' | '.join(spreads)} |")
    return "\n".join(lines)


def verdicts(results: Results) -> str:
    """The two aims, beside what was measured."""
    stubborn, obedient = VICTIMS

    def later(victim: str) -> float:
        ours, theirs = (_median(results[victim, protected], "running") or 0.0 for protected in (True, False))
        return ours - theirs

    return (
        f"Beside the same without us: {stubborn}: **{-later(stubborn):.1f} s earlier** (aim: earlier);"
        f" {obedient}: **{later(obedient):.1f} s later** (aim: at most 1 s)."
    )


def _values(timelines: Sequence[Timeline], step: str) -> list[float]:
    found = [msgspec.structs.asdict(timeline)[step] for timeline in timelines]
    return [value for value in found if value is not None]


def _median(timelines: Sequence[Timeline], step: str) -> float | None:
    values = _values(timelines, step)
    return statistics.median(values) if values else None


def _spread(timelines: Sequence[Timeline]) -> str:
    values = _values(timelines, "running")
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods-per-node", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    by_size = asyncio.run(measure(arguments.repetitions, arguments.pods_per_node, Steps()))
    load = f"load average {os.getloadavg()[2]:.0f}: the cluster's own and whatever else ran"
    parts = [f"{machine()}, {load}"]
    for size, results in by_size.items():
        parts += [f"A victim of {2 * size} pods, {size} on each node:", table(results), verdicts(results)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


if __name__ == "__main__":
    main()
