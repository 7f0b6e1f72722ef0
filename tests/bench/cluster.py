"""Measure how long a preemptor waits, with the product and without it, on one cluster: `make bench-cluster`.

    python -m tests.bench.cluster [--schedulers Kueue Volcano ...] [--places 2] [--repetitions 3]
                                  [--kept build/bench-cluster.json] [--write docs/bench-cluster.md]

The cluster is that of CLUSTER_NAME, brought up if it is not; the schedulers are there one after the other. Whether the
victims ask for protection is all that differs between the columns. Absolute times belong to the machine; the
differences are what to keep. Of schedulers that are not named now, what was kept of an earlier run is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests.bench.cluster_report import Measured, report
from tests.bench.page import replace_measured
from tests.bench.preemption import ENDS_AT_ONCE, IGNORES_SIGTERM, Stage, timeline
from tests.bench.report import machine
from tests.bench.running import running_product
from tests.bench.schedulers.armada import Armada
from tests.bench.schedulers.kueue import Kueue
from tests.bench.schedulers.scheduler import Scheduler
from tests.bench.schedulers.volcano import Volcano, VolcanoWithExtender
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.images.catalog import find_images
from tests.cluster.steps import Steps

SCHEDULERS: dict[str, type[Scheduler]] = {one.name: one for one in (Kueue, Volcano, VolcanoWithExtender, Armada)}
VICTIMS = {"ignores SIGTERM": IGNORES_SIGTERM, "ends at SIGTERM": ENDS_AT_ONCE}
_SHARE = 0.43
"""Of a node is half of its pods' request: more than two fifths, so that each group owns two pods of four and no third;
less than half, because of what the system takes."""


async def measure(
    names: Sequence[str], places: int, repetitions: int, steps: Steps, keep: Callable[[Measured], None]
) -> None:
    """Every case of a scheduler in turn, again and again: what slows the machine down slows all of them down.

    Args:
        names: of the schedulers.
        places: how many pods have to go; on each of the two nodes run as many.
        repetitions: of every case.
        steps: shows every case.
        keep: takes what was measured.
    """
    async with running_product(steps) as (cluster, api, product):
        for name in names:
            async with SCHEDULERS[name].ready(product, steps) as scheduler:
                cases = [(victim, protected) for victim in VICTIMS for protected in (False, True)]
                for number, (victim, protected) in enumerate(cases * repetitions):
                    what = f"{name} {1 + number // len(cases)}: {victim}, {'with' if protected else 'without'} us"
                    with steps.step(what):
                        keep(await _one(cluster, api, scheduler, places, victim, protected=protected))


async def _one(
    cluster: Cluster, api: Api, scheduler: Scheduler, places: int, victim: str, *, protected: bool
) -> Measured:
    nodes = await api.objects("v1", "Node")
    smallest = min(int(node["status"]["allocatable"]["cpu"]) for node in nodes)
    millicpus = int(2000 * _SHARE * smallest / places)
    async with Namespace.created(cluster, api, f"bench-{uuid.uuid4().hex[:8]}") as namespace:
        audit = Audit(cluster.control_plane.audit_log)
        program = VICTIMS[victim]
        stage = Stage(namespace, audit, find_images()["toolbox"].tag, program, places, millicpus, protected)
        preemption = await scheduler.preempt(stage)
        return Measured(scheduler.name, places, victim, protected, timeline(stage, preemption))


def _measure_and_keep(arguments: argparse.Namespace) -> list[Measured]:
    """What was measured now, and what was kept of others; kept after each case."""
    kept: Path = arguments.kept
    earlier = msgspec.json.decode(kept.read_bytes(), type=list[Measured]) if kept.exists() else []
    found = [one for one in earlier if one.scheduler not in arguments.schedulers or one.places != arguments.places]
    kept.parent.mkdir(parents=True, exist_ok=True)

    def keep(one: Measured) -> None:
        found.append(one)
        kept.write_bytes(msgspec.json.encode(found))

    asyncio.run(measure(arguments.schedulers, arguments.places, arguments.repetitions, Steps(), keep))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    parser.add_argument("--places", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--kept", type=Path, default=Path("build/bench-cluster.json"))
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    measured = _measure_and_keep(arguments)
    load = f"load average {os.getloadavg()[2]:.0f}: the cluster's own and whatever else ran"
    text = f"{machine()}, {load}\n\n{report(measured, list(SCHEDULERS), list(VICTIMS))}\n"
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


if __name__ == "__main__":
    main()
