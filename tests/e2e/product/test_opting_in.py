"""Who asks for protection has it, by a queue or by one variable; who does not is preempted as if we were not there."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects.names import API_VERSION, CHECKPOINTABLE, POLICY, PREFLIGHT_REQUESTED
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import is_gone
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.images.catalog import REPOSITORY
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, BEGUN, COUNTS, begun, counting, enough
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.history import Eviction, of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.policies import own_policy
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = pytest.mark.any_shape

RING = """
import ctypes, time
parameters = ctypes.create_string_buffer(120)
io_uring_setup = 425
ring = ctypes.CDLL(None).syscall(io_uring_setup, 4, parameters)
print("ring" if ring >= 0 else "no ring", flush=True)
"""
"""It uses io_uring if it may, as libuv does."""
PROFILES = "/var/lib/kubelet/seccomp"
WITHOUT_IO_URING = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["io_uring_setup"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}],
}


async def test_job_that_asks_for_nothing_is_preempted_as_without_us(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, audit: Audit
) -> None:
    async with groups(namespace, check=None), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(), pods=4))
        await begun(bio, *range(4))

        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

        eviction = Eviction.of(audit, namespace.name, "md")
        assert not eviction.refused
        assert len(eviction.suspended) == 1
        assert of_ours(audit, namespace.name) == []
        for index in range(4):
            assert bio.lines(index)[-COUNTS:] == ALL, "it began anew"
            assert len(bio.lines(index)) > COUNTS


async def test_variable_alone_protects_in_a_queue_without_our_check(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    async with groups(namespace, check=None), Following.of(namespace, "md") as bio:
        asked = {CHECKPOINT_VARIABLE: "protein"}
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(counts=None), pods=4, env=asked))
        await begun(bio, *range(4))

        await reclaim(namespace, toolbox)
        await enough(namespace, bio, "md", 4)

        checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
        assert {one["spec"]["identity"]["id"] for one in checkpoints} == {"protein"}


async def test_job_made_anew_with_the_same_id_continues_from_its_newest_snapshot(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    asked = {CHECKPOINT_VARIABLE: "protein"}
    async with groups(namespace):
        async with Following.of(namespace, "md") as first:
            await namespace.apply(indexed_job("md", "bio", toolbox, *counting(), pods=4, env=asked))
            await begun(first, *range(4))
            await namespace.apply(_endless("train", "ml", toolbox))
            await namespace.wait("batch/v1", "Job", "md", lambda job: bool(job["spec"]["suspend"]), within=120)
            await namespace.pods("job=train", count=2)
            before = [first.lines(index) for index in range(4)]
        await namespace.delete("batch/v1", "Job", "md")
        await namespace.wait("batch/v1", "Job", "md", is_gone)

        async with Following.of(namespace, "md-again") as second:
            await namespace.delete("batch/v1", "Job", "train")
            await namespace.apply(indexed_job("md-again", "bio", toolbox, *counting(), pods=4, env=asked))
            await completed(namespace, "md-again")
            await asyncio.wait_for(second.read(), patient(60))

        for index in range(4):
            after = second.lines(index)
            assert before[index] + after == ALL
            assert len(before[index]) >= BEGUN


def _endless(name: str, queue: str, image: str) -> dict[str, object]:
    return indexed_job(name, queue, image, "python3", "-c", "import time; time.sleep(10_000)", pods=2)


@pytest.mark.skipif(
    Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() == "2", reason="this machine allows no io_uring"
)
async def test_what_a_checkpoint_would_fail_for_is_known_before_and_a_policy_keeps_pods_from_it(
    namespace: Namespace, cluster: Cluster, toolbox: str, installed_with_kueue: Product
) -> None:
    asked = [{"name": CHECKPOINT_VARIABLE, "value": "protein"}]
    await namespace.apply(pod("ring", container(toolbox, "python3", "-c", f"{RING}time.sleep(10_000)", env=asked)))
    found = await namespace.wait("v1", "Pod", "ring", lambda one: _checkpointable(one).get("status") == "False")
    condition = _checkpointable(found)
    assert condition["reason"] == "UsesIoUring"
    assert "uses io_uring: switch it off in the program" in condition["message"]
    assert "podDefaults of a CheckpointPolicy" in condition["message"]
    assert {"name": "UV_USE_IO_URING", "value": "0"} in found["spec"]["containers"][0]["env"]
    assert (await wait_for_messages(namespace, "ring", "NotCheckpointable", kind="Warning")) == [
        f"{condition['message']} (UsesIoUring)"
    ]
    shown = re.search(r"-o custom-columns='([^']+)'", (REPOSITORY / "docs/kubernetes.md").read_text())
    assert shown is not None
    table = await namespace.kubectl("get", "pods", "--no-headers", f"--output=custom-columns={shown[1]}")
    assert table.split() == ["ring", "False", "UsesIoUring"]
    annotations = {"annotations": {PREFLIGHT_REQUESTED: "after the fix"}}
    await namespace.api.patch("v1", "Pod", "ring", {"metadata": annotations}, namespace.name)
    probed = condition["lastProbeTime"]
    await namespace.wait("v1", "Pod", "ring", lambda one: _checkpointable(one)["lastProbeTime"] != probed)
    await namespace.delete("v1", "Pod", "ring")

    for node in cluster.nodes.values():  # containerd 1.7 allows io_uring by default
        await node.run("mkdir", "-p", PROFILES)
        await node.run("tee", f"{PROFILES}/no-io-uring.json", stdin=json.dumps(WITHOUT_IO_URING).encode())
    profile = {"type": "Localhost", "localhostProfile": "no-io-uring.json"}
    body = indexed_job("md", "bio", toolbox, "python3", "-c", RING + counting()[-1], pods=4)
    async with (
        own_policy(namespace, podDefaults={"seccompProfile": profile}) as name,
        groups(namespace),
        Following.of(namespace, "md") as bio,
    ):
        body["spec"]["template"]["metadata"].setdefault("annotations", {})[POLICY] = name
        await namespace.apply(body)
        await begun(bio, *range(4))
        pods = await namespace.pods("job=md", count=4)
        await namespace.wait(
            "v1", "Pod", pods[0]["metadata"]["name"], lambda one: _checkpointable(one).get("status") == "True"
        )

        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

        assert [bio.lines(index) for index in range(4)] == [["no ring", *ALL]] * 4


def _checkpointable(body: Object) -> dict[str, str]:
    conditions = body["status"].get("conditions", ())
    return next((one for one in conditions if one["type"] == CHECKPOINTABLE), {})


async def test_deleted_pod_that_ignores_sigterm_has_its_owners_grace_and_no_more(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    asked = [{"name": CHECKPOINT_VARIABLE, "value": "protein"}]
    main = container(toolbox, "python3", "-c", "import time; time.sleep(10_000)", env=asked)  # process 1 ignores it
    await namespace.apply(pod("stubborn", main, terminationGracePeriodSeconds=2))
    await namespace.ready("stubborn")

    await namespace.delete("v1", "Pod", "stubborn")

    await namespace.wait("v1", "Pod", "stubborn", is_gone, within=30)
