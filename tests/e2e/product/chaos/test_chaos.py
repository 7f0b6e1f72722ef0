"""A mixed load, random faults from a seed, and at the end every invariant judged from what the programs said.

make chaos SEED=7 MINUTES=10
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from tests.cluster.addons.catalog import install
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.volcano import NAMESPACE as VOLCANO
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product import parts, queues, volcano_queues
from tests.e2e.product.chaos import faults
from tests.e2e.product.chaos.aftermath import account_of, wait_until_calm
from tests.e2e.product.chaos.conftest import Run, minutes
from tests.e2e.product.chaos.figures import figures
from tests.e2e.product.chaos.judge import judge
from tests.e2e.product.chaos.load import KUEUE_QUOTAS, Load, doomed_namespace
from tests.e2e.product.chaos.outside import Outside
from tests.e2e.product.chaos.plan import draw
from tests.e2e.product.chaos.report import report
from tests.e2e.product.chaos.world import World, insist
from tests.e2e.product.installation import Product

VOLCANOS_CONTROLLERS = "volcano-controllers"

_BEFORE_AND_AFTER_SECONDS = 1800
"""For the cluster, the calm after the faults and the judging."""

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.shape("volcano"),
    pytest.mark.timeout(60 * minutes() + patient(_BEFORE_AND_AFTER_SECONDS)),
]

_POLICY = {"deadlineSeconds": 60, "restoreDeadlineSeconds": 120}
"""Short enough that a run sees deadlines pass."""


async def test_nothing_is_lost_whatever_befalls_the_cluster(
    run: Run, cluster: Cluster, api: Api, beside: Outside, toolbox: str, kueue: None, release: Product, audit: Audit,
    steps: Steps,
) -> None:  # fmt: skip
    assert release.values["storage"]["s3"]["endpoint"] == beside.s3.endpoint, "faults would hit a store of nobody"
    await install(cluster, [Volcano(volcano_queues.RECLAIMS)], steps)
    await _let_volcano_try_for_ever(cluster, api)
    await release.ensure(kueue={"enabled": True}, volcano={"enabled": True}, policy={"spec": _POLICY})
    plan = draw(run.seed, run.minutes)
    steps.say(f"chaos: seed {run.seed}, {run.minutes:g} min, {len(plan)} faults")
    world = World(cluster, api, beside, toolbox, steps)
    async with (
        Namespace.created(cluster, api, f"chaos-{run.seed}") as ours,
        Namespace.created(cluster, api, f"chaos-{run.seed}-volcano") as theirs,
        queues.groups(ours, KUEUE_QUOTAS),
        volcano_queues.groups(theirs),
    ):
        load = Load(world, ours, theirs, run.seed)
        async with load.failed_replaced():
            async with load.running(), doomed_namespace(world, f"chaos-{run.seed}-doomed") as doomed:
                await faults.bring_about(world, plan)
                await insist(lambda: parts.whole(api, within=120))
                doomed.cancel()
            troubles = await _end(world, load)
        account = await account_of(world, load, audit, [ours, theirs])
    found, breaches = figures(account), [*troubles, *judge(account)]
    report(run, plan, account, found, breaches)
    steps.say(f"chaos: {json.dumps(found)}")
    assert not breaches, "\n".join(breaches)
    assert found["continued in another pod"] > 0
    assert found["faults"] == len(plan)


async def _let_volcano_try_for_ever(cluster: Cluster, api: Api) -> None:
    """A job that its controllers cannot sync fifteen times, because a webhook is away, they terminate."""
    argument = {"op": "add", "path": "/spec/template/spec/containers/0/args/0", "value": "--max-requeue-num=-1"}
    await api.patch("apps/v1", "Deployment", VOLCANOS_CONTROLLERS, [argument], VOLCANO)
    await wait_available(cluster, api, VOLCANO, [VOLCANOS_CONTROLLERS])


async def _end(world: World, load: Load) -> list[str]:
    """Have every job come to its end; what keeps one from it is a breach, and the rest is judged all the same."""
    troubles: list[str] = []
    way: Sequence[Callable[[], Awaitable[None]]] = (partial(wait_until_calm, world, load), load.end)
    for step in way:
        try:
            await step()
        except* ClusterError as errors:
            troubles.append(f"every_job_ends: {'; '.join(map(str, errors.exceptions))}")
    return troubles
