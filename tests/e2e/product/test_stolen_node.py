"""A node that somebody has taken over: what lies on it opens the snapshots of its own pods' namespaces, and no others.

Its agent has no key of the bucket. The thief has what the node has: the memory of the agent, its token for credentials
of single namespaces, and the node's network.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from pathlib import Path

import minio
import msgspec
import pytest
import pytest_asyncio
import urllib3

from cedana_sched.cluster.coordinator.credentials.authorization_rules import AUDIENCE
from cedana_sched.cluster.coordinator.credentials.endpoint import PATH
from cedana_sched.model.identity import namespace_store_key
from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, RestoreStep
from cedana_sched.store import layout
from cedana_sched.store.credential_renewal import SessionCredentials
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product import sts_server
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import reclaim
from tests.e2e.product.rendering import NAMESPACE
from tests.e2e.product.s3_server import S3Server
from tests.servers.thief import client_with, is_refused, not_refused

pytestmark = [
    pytest.mark.any_shape,
    pytest.mark.nodes(2),
    pytest.mark.exhaustive,  # the server with STS takes minutes to build
    pytest.mark.timeout(patient(1200)),
]

CREDENTIALS = "cedana-sched-credentials"
SECRET = b"memory of theirs"
AGENT, COORDINATOR = "cedana_sched.cluster.node", "cedana_sched.cluster.coordinator"

_HELD = """
import json, os, pathlib, sys
program, word = sys.argv[1].encode(), sys.stdin.readline().strip().encode()
found, looked_at, PIECE = [], 0, 16 << 20
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if int(process.name) == os.getpid():
        continue
    try:
        if program not in (process / "cmdline").read_bytes().split(b"\\0"):
            continue
        looked_at += 1
        if word in (process / "environ").read_bytes():
            found.append("environment")
        with (process / "mem").open("rb", buffering=0) as memory:
            for line in (process / "maps").read_text().splitlines():
                begin, end = (int(one, 16) for one in line.split()[0].split("-"))
                if "r" not in line.split()[1] or "[vvar" in line:
                    continue
                for start in range(begin, end, PIECE):
                    try:
                        memory.seek(start)
                        if word in memory.read(min(PIECE + len(word), end - start)):
                            found.append("memory")
                    except (OSError, OverflowError):
                        break
    except OSError:
        pass
print(json.dumps([looked_at, sorted(set(found))]))
"""
"""Where the processes of a program hold a word that comes as the first line of the input."""


@asynccontextmanager
async def _back_on(namespace: Namespace, image: str, node: str) -> AsyncIterator[None]:
    """Inside the block runs a Job that was preempted and has been continued, on this node; it loses nothing."""
    async with groups(namespace), Following.of(namespace, "md") as bio:
        body = indexed_job(
            "md", "bio", image, *counting(mebibytes=20, counts=None), cpu="600m",
            nodeSelector={"kubernetes.io/hostname": node},
        )  # fmt: skip
        await namespace.apply(body)
        await begun(bio, 0)
        await reclaim(namespace, image)
        await all_at(namespace, "Restore", RestoreStep.RUNNING)
        yield
        await enough(namespace, bio, "md", 1)


@pytest_asyncio.fixture(loop_scope="session")
async def theirs(cluster: Cluster, api: Api) -> AsyncIterator[Namespace]:
    """The namespace of another group."""
    async with Namespace.created(cluster, api, f"finance-{uuid.uuid4().hex[:5]}") as namespace:
        yield namespace


class _Bank:
    """The coordinator, as whoever holds a token asks it for credentials."""

    def __init__(self, endpoint: str, authorities: Path) -> None:
        self._endpoint = endpoint
        self._authorities = authorities

    async def answer(self, token: str, namespace: str) -> tuple[int, bytes]:
        return await asyncio.to_thread(self._post, token, namespace)

    async def given(self, token: str, namespace: str) -> SessionCredentials:
        status, body = await self.answer(token, namespace)
        assert status == 200, body
        return msgspec.json.decode(body, type=SessionCredentials)

    async def refused(self, token: str, namespace: str) -> tuple[int, str]:
        status, body = await self.answer(token, namespace)
        return status, str(json.loads(body)["message"])

    def _post(self, token: str, namespace: str) -> tuple[int, bytes]:
        name = f"{CREDENTIALS}.{NAMESPACE}.svc"
        with urllib3.PoolManager(
            cert_reqs="CERT_REQUIRED", ca_certs=str(self._authorities), server_hostname=name, assert_hostname=name
        ) as client:
            headers = {"Authorization": f"Bearer {token}"}
            body = json.dumps({"namespace": namespace}).encode()
            answer = client.request("POST", f"{self._endpoint}{PATH}", body=body, headers=headers, retries=False)
            return answer.status, answer.data


@asynccontextmanager
async def _bank(cluster: Cluster, api: Api, folder: Path) -> AsyncIterator[_Bank]:
    authorities = folder / "ca.crt"
    authorities.write_text((await api.get("v1", "ConfigMap", CREDENTIALS, NAMESPACE))["data"]["ca.crt"])
    async with Namespace(cluster, api, NAMESPACE).forwarded(f"service/{CREDENTIALS}", 443) as port:
        yield _Bank(f"https://127.0.0.1:{port}", authorities)


async def _agent_on(api: Api, node: str) -> Object:
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=agent")
    (found,) = (pod for pod in pods if pod["spec"]["nodeName"] == node and has_condition("Ready")(pod))
    return found


async def _token_on_disk(cluster: Cluster, agent: Object) -> str:
    volumes = f"/var/lib/kubelet/pods/{agent['metadata']['uid']}/volumes/kubernetes.io~projected"
    return (await cluster.nodes[agent["spec"]["nodeName"]].run("cat", f"{volumes}/credentials/token")).strip()


async def _held_by(ours: Namespace, agent: Object, program: str, word: str) -> list[str]:
    """Where a program's processes on the agent's node have a word; there must be some."""
    said = await ours.kubectl(
        "exec", "--stdin", agent["metadata"]["name"], "--", "python3", "-c", _HELD, program, stdin=f"{word}\n".encode()
    )
    looked_at, found = json.loads(said)
    assert looked_at, f"no process of {program} is there"
    return [str(place) for place in found]


async def _kept(api: Api, namespace: Namespace) -> str:
    """What the store calls it."""
    body = await api.get("v1", "Namespace", namespace.name)
    return namespace_store_key(namespace.name, body["metadata"]["uid"])


@contextmanager
def _planted(owner: minio.Minio, bucket: str, keys: Sequence[str]) -> Iterator[None]:
    for key in keys:
        owner.put_object(bucket, key, BytesIO(SECRET), len(SECRET))
    yield
    for key in keys:
        owner.remove_object(bucket, key)


def _objects(owner: minio.Minio, bucket: str, keys: Sequence[str]) -> dict[str, bytes]:
    return {key: owner.get_object(bucket, key).read() for key in keys}


def _try_all(thief: minio.Minio, owner: minio.Minio, bucket: str, own: str, others: Sequence[str]) -> None:
    """Every attack on every key, and on the names of all."""
    before = _objects(owner, bucket, others)
    assert {key: not_refused(thief, bucket, key, own) for key in others} == {key: set() for key in others}
    for prefix in ("", f"{sts_server.PREFIX}/", f"{sts_server.PREFIX}/{layout.ROOT}/"):
        for recursive in (False, True):
            assert is_refused(lambda p=prefix, r=recursive: list(thief.list_objects(bucket, p, recursive=r)))  # type: ignore[misc]
    assert _objects(owner, bucket, others) == before
    names = {str(one.object_name) for one in owner.list_objects(bucket, recursive=True)}
    assert not [name for name in names if name.endswith(("-new", "-stolen"))]
    assert {"get", "put", "list its folder"} <= not_refused(thief, bucket, own, own), "else it would show nothing"


async def test_it_opens_the_snapshots_of_its_own_pods_and_no_others(
    namespace: Namespace, theirs: Namespace, toolbox: str, installed_with_scoped_credentials: Product, sts: S3Server,
    cluster: Cluster, api: Api, tmp_path: Path,
) -> None:  # fmt: skip
    here, there = list(cluster.nodes)[:2]
    ours = Namespace(cluster, api, NAMESPACE)
    async with (
        _back_on(namespace, toolbox, here), _back_on(theirs, toolbox, there),
        _bank(cluster, api, tmp_path) as bank, sts_server.reached(cluster, api) as endpoint,
    ):  # fmt: skip
        for one in (namespace, theirs):
            restores = await api.objects(API_VERSION, "Restore", one.name)
            assert not [each for each in restores if each["status"].get("cold")], "it continued by such credentials"
        await wait_for(api, API_VERSION, "CheckpointStorage", "default", has_condition("Scoped"), within=120)
        agent = await _agent_on(api, here)
        assert await _held_by(ours, agent, AGENT, sts.secret_key) == []
        assert await _held_by(ours, agent, COORDINATOR, sts.secret_key), "else it would show nothing"

        mine, finance = await _kept(api, namespace), await _kept(api, theirs)
        older = namespace_store_key(namespace.name, str(uuid.uuid4()))
        token = await _token_on_disk(cluster, agent)
        for foreign, why in (
            (finance, f"no protected pod of namespace {theirs.name} is on node {here}"),
            (older, "keeps what is saved"),
            (namespace.name, "keeps what is saved"),
            (f"{mine}0", ""),
        ):
            status, said = await bank.refused(token, foreign)
            assert status in {400, 403}, foreign
            assert why in said
        await _nobody_else_is_given(bank, ours, namespace, agent, mine)

        owner = client_with(sts_server.OWNER, endpoint)
        thief = client_with(await bank.given(token, mine), endpoint)
        root = f"{sts_server.PREFIX}/{layout.ROOT}"
        saved = [str(one.object_name) for one in owner.list_objects(sts.bucket, f"{root}/{finance}/", recursive=True)]
        (manifest,) = [key for key in saved if key.endswith(".manifest")]
        own = f"{root}/{mine}/packs/a-1"
        foreign_keys = [f"{root}/{one}/packs/a-1" for one in (finance, older, namespace.name, f"{mine}0")]
        elsewhere = ["root", f"{layout.ROOT}/{mine}/packs/a-1", f"other/{layout.ROOT}/{mine}/packs/a-1"]
        others = [*foreign_keys, *elsewhere]
        with _planted(owner, sts.bucket, [own, *others]):
            await asyncio.to_thread(_try_all, thief, owner, sts.bucket, own, [manifest, *others])
            assert await asyncio.to_thread(_is_gone, thief, sts.bucket, own), "its own it may remove"
    await all_at(namespace, "Checkpoint", CheckpointStep.READY)
    async with _bank(cluster, api, tmp_path) as bank:
        await all_at(namespace, "Restore", RestoreStep.ENDED)
        status, said = await bank.refused(token, mine)
        assert (status, "no protected pod" in said) == (403, True), "nothing of it is on the node any more"


def _is_gone(thief: minio.Minio, bucket: str, key: str) -> bool:
    thief.remove_object(bucket, key)
    return key not in {one.object_name for one in thief.list_objects(bucket, key)}


async def _nobody_else_is_given(bank: _Bank, ours: Namespace, tenant: Namespace, agent: Object, mine: str) -> None:
    """Neither who has no token, nor a tenant with one for that audience, nor the agent's token for the API server."""
    audience = ("--audience", AUDIENCE)
    of_tenant = (await tenant.kubectl("create", "token", "default", *audience)).strip()
    of_no_pod = (await ours.kubectl("create", "token", agent["spec"]["serviceAccountName"], *audience)).strip()
    for_api = await ours.exec(agent["metadata"]["name"], "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
    refusals = [await bank.refused(token, mine) for token in ("none", for_api.strip(), of_tenant, of_no_pod)]
    assert [status for status, _ in refusals] == [401, 401, 403, 403], refusals
    assert "only agents get credentials" in refusals[2][1]
    assert "bound to no pod" in refusals[3][1]
