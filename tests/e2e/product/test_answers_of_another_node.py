"""The agent of one node says something about the pod of another: it is refused, or counts for nothing.

Two Jobs are evicted, each from a node of its own. The agent of one node is paused, so that its order stands unanswered
while somebody has its token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.pausing import paused
from tests.e2e.product.phases import all_at
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.rendering import NAMESPACE

pytestmark = [pytest.mark.any_shape, pytest.mark.nodes(2)]

QUOTAS = {"bio": "0", "ml": "800m"}
"""All that bio runs is lent."""
MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount/token"


class _Thief:
    """Whoever has the token of the agent of a node, and nothing else."""

    def __init__(self, cluster: Cluster, namespace: Namespace, token: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._token = token.strip()

    async def answers(self, what: str, number: int, outcome: Mapping[str, Any]) -> str:
        """Write it into a status; what kubectl says."""
        patch = json.dumps({"status": {"answer": {"number": number, "outcome": outcome}}})
        return await self._kubectl("patch", what, "--subresource=status", "--type=merge", f"--patch={patch}")

    async def is_refused(self, what: str, number: int, outcome: Mapping[str, Any]) -> str:
        with pytest.raises(ClusterError) as caught:
            await self.answers(what, number, outcome)
        return str(caught.value)

    async def _kubectl(self, *arguments: str) -> str:
        """With an empty kubeconfig: the administrator's certificate would count before the token."""
        place = self._cluster.place
        address = self._cluster.control_plane.url.replace(str(place.address), str(place.address_from_host))
        return await run(
            self._cluster.binaries.program("kubectl"), "--kubeconfig=/dev/null", f"--server={address}",
            f"--certificate-authority={place.pki / 'ca.crt'}", f"--token={self._token}",
            f"--namespace={self._namespace.name}", *arguments, what="kubectl failed", remedy="see what it says",
        )  # fmt: skip


async def _agent_on(api: Api, node: str) -> Object:
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=agent")
    (agent,) = (pod for pod in pods if pod["spec"]["nodeName"] == node and has_condition("Ready")(pod))
    return agent


def _job(name: str, image: str, node: str) -> Object:
    return indexed_job(
        name, "bio", image, *counting(mebibytes=20, counts=None), cpu="400m",
        nodeSelector={"kubernetes.io/hostname": node},
    )  # fmt: skip


async def _checkpoint_of(namespace: Namespace, job: str) -> Object:
    """That of its pod, once it is there."""

    def theirs(found: list[Object]) -> list[Object]:
        return [one for one in found if one["spec"]["podRef"]["name"].startswith(f"{job}-")]

    found = await wait_for_all(
        namespace.api, API_VERSION, "Checkpoint", lambda found: bool(theirs(found)),
        namespace=namespace.name, within=120,
    )  # fmt: skip
    (checkpoint,) = theirs(found)
    return checkpoint


def _order_in(checkpoint: Object) -> Object:
    order: Object = checkpoint.get("status", {}).get("order") or checkpoint["spec"]["firstOrder"]
    return order


async def test_an_agent_says_nothing_about_a_pod_of_another_node(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    here, there = list(cluster.nodes)[:2]
    agent = await _agent_on(api, here)
    thief = _Thief(
        cluster, namespace, await Namespace(cluster, api, NAMESPACE).exec(agent["metadata"]["name"], "cat", MOUNTED)
    )
    async with (
        groups(namespace, QUOTAS), Following.of(namespace, "mine") as mine, Following.of(namespace, "theirs") as theirs,
    ):  # fmt: skip
        await namespace.apply(_job("mine", toolbox, here), _job("theirs", toolbox, there))
        await begun(mine, 0)
        await begun(theirs, 0)
        async with paused(cluster, agent):  # not for a minute: the kubelet would start it anew
            await namespace.apply(indexed_job("train", "ml", toolbox, "sleep", "3600", pods=2, cpu="400m"))
            own, foreign = await _checkpoint_of(namespace, "mine"), await _checkpoint_of(namespace, "theirs")
            forged = {"type": "Frozen", "checkpoint_uid": foreign["spec"]["uid"]}

            said = await thief.is_refused(f"cckpt/{foreign['metadata']['name']}", 99, forged)
            assert f"the agent of node {here} has nothing to write about node {there}" in said

            # an order of its own it may answer, and it says that the pod of the other one is frozen
            await thief.answers(f"cckpt/{own['metadata']['name']}", _order_in(own)["number"], forged)
            (word,) = await wait_for_messages(namespace, own["metadata"]["name"], "AnswerRejected", kind="Warning")
            assert f"it answers for '{foreign['spec']['uid']}'" in word

        steps = {
            one["metadata"]["name"]: one["status"]["step"]
            for one in await all_at(namespace, "Checkpoint", CheckpointStep.READY, CheckpointStep.FAILED, count=2)
        }
        assert steps == {
            own["metadata"]["name"]: CheckpointStep.FAILED, foreign["metadata"]["name"]: CheckpointStep.READY,
        }  # fmt: skip
        await _comes_back(namespace, thief, theirs, here, there)


async def _comes_back(namespace: Namespace, thief: _Thief, theirs: Following, here: str, there: str) -> None:
    """The other node's pod continues from its own snapshot, whatever is said of its return."""
    await namespace.delete("batch/v1", "Job", "mine")
    await namespace.delete("batch/v1", "Job", "train")
    await asyncio.wait_for(theirs.said(0, len(theirs.lines(0)) + 5), patient(120))
    restores = await namespace.api.objects(API_VERSION, "Restore", namespace.name)
    (restore,) = (one for one in restores if one["spec"]["podRef"]["name"] == theirs.pods[0][-1])
    assert restore["status"]["step"] == RestoreStep.RUNNING
    outcome = {"type": "StartedCold", "restore_uid": restore["spec"]["uid"]}
    said = await thief.is_refused(f"crst/{restore['metadata']['name']}", 99, outcome)
    assert f"the agent of node {here} has nothing to write about node {there}" in said
    await enough(namespace, theirs, "theirs", 1)
