"""A pod writes on to a volume after its periodic snapshot, crashes, and its successor continues from that snapshot."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from cedana_sched.model.objects.names import API_VERSION, ID, POLICY
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.product import parts
from tests.e2e.product.counting import begun
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.policies import OFTEN, own_policy

pytestmark = [pytest.mark.any_shape, pytest.mark.exhaustive]

_WRITE: Final = """
import itertools, os, time
file = open("/data/log", "{mode}", buffering=0)
for number in itertools.count():
    file.write(b"%d\\n" % number)
    print(number, flush=True)
    if os.path.exists("/data/crash"):
        os.unlink("/data/crash")
        os._exit(1)
    if os.path.exists("/tmp/enough"):
        break
    time.sleep(0.1)
"""


def _job(namespace: Namespace, image: str, policy: str, mode: str) -> Object:
    """A job that stays on the node of its volume, a folder of root's."""
    main = container(image, "python3", "-c", _WRITE.format(mode=mode), resources={"requests": {"cpu": "100m"}})
    main |= {"volumeMounts": [{"name": "data", "mountPath": "/data"}], "securityContext": {"runAsUser": 0}}
    indexed = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 6}
    folder = {"path": f"/var/lib/changed-volumes/{namespace.name}", "type": "DirectoryOrCreate"}
    place = {"kubernetes.io/hostname": min(namespace.cluster.nodes)}
    body = job("md", main, fields=indexed, restartPolicy="Never", terminationGracePeriodSeconds=3)
    template = body["spec"]["template"]
    template["metadata"]["annotations"] = {ID: "md", POLICY: policy}
    template["spec"] |= {"volumes": [{"name": "data", "hostPath": folder}], "nodeSelector": place}
    return body


async def _crash_after_snapshot(namespace: Namespace, md: Following) -> None:
    """Let the pod write on for a while after a snapshot, then crash."""
    await asyncio.wait_for(begun(md, 0), patient(120))

    def is_saved(found: list[Object]) -> bool:
        return any(one.get("status", {}).get("phase") == "Ready" for one in found)

    await wait_for_all(namespace.api, API_VERSION, "Checkpoint", is_saved, namespace=namespace.name)
    await asyncio.wait_for(begun(md, 0, counts=len(md.lines(0)) + 10), patient(60))
    await namespace.exec(md.pods[0][0], "touch", "/data/crash")


async def _log(namespace: Namespace, pod: str) -> list[int]:
    return list(map(int, (await namespace.exec(pod, "cat", "/data/log")).split()))


async def test_what_a_pod_wrote_after_its_snapshot_is_rewound(
    namespace: Namespace, toolbox: str, installed: Product, api: Api
) -> None:
    del installed
    async with own_policy(namespace, **OFTEN, onVolumeChange="Rewind") as policy, Following.of(namespace, "md") as md:
        await namespace.apply(_job(namespace, toolbox, policy, "wb"))
        await _crash_after_snapshot(namespace, md)
        await asyncio.wait_for(begun(md, 0, counts=len(md.lines(0)) + 40), patient(180))
        successor = md.pods[0][1]
        assert next(map(int, md.by_pod(0)[1])) > 0
        (message,) = set(await wait_for_messages(namespace, successor, "FilesChanged"))
        assert "/data/log has grown" in message
        assert "truncated to its size at the snapshot" in message
        numbers = await _log(namespace, successor)
        assert numbers == list(range(len(numbers)))
        await namespace.exec(successor, "touch", "/tmp/enough")
        await namespace.wait("batch/v1", "Job", "md", lambda body: bool(body["status"].get("succeeded")), within=60)
    await parts.whole(api)


async def test_the_policy_starts_such_a_pod_cold(
    namespace: Namespace, toolbox: str, installed: Product, api: Api
) -> None:
    del installed
    async with (
        own_policy(namespace, **OFTEN, onVolumeChange="ColdStart") as policy,
        Following.of(namespace, "md") as md,
    ):
        await namespace.apply(_job(namespace, toolbox, policy, "ab"))
        await _crash_after_snapshot(namespace, md)
        await asyncio.wait_for(begun(md, 0, counts=len(md.lines(0)) + 40), patient(180))
        successor = md.pods[0][1]
        assert next(map(int, md.by_pod(0)[1])) == 0
        (message,) = set(await wait_for_messages(namespace, successor, "ColdStart"))
        assert "/data/log has grown" in message
        assert "onVolumeChange: ColdStart" in message
        numbers = await _log(namespace, successor)
        assert numbers.count(0) == 2, "nothing was truncated"
        await namespace.exec(successor, "touch", "/tmp/enough")
        await namespace.wait("batch/v1", "Job", "md", lambda body: bool(body["status"].get("succeeded")), within=60)
    await parts.whole(api)
