"""A tenant's pod asks our webhooks, in the API server's place, to have a pod of another tenant evicted: nobody answers.

It reaches them, for no network here enforces policies. The very same question counts if its path is the API server's.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects.names import EVICTION_REQUESTED, PROTECTED
from cedana_sched.model.records import HoldStep
from cedana_sched_kueue.webhooks import JOBS
from cedana_sched_webhooks.registrations import PODS, STATUSES
from tests.cluster.api.client import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.counting import counting
from tests.e2e.product.history import of_ours
from tests.e2e.product.installation import WEBHOOKS, Product
from tests.e2e.product.phases import reached
from tests.e2e.product.rendering import NAMESPACE, RELEASE
from tests.e2e.product.volcano_queues import SCHEDULER

pytestmark = pytest.mark.shape("volcano")

_POST = f"""
import http.client, json, ssl, sys
for path, review in json.load(sys.stdin):
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("{WEBHOOKS}.{NAMESPACE}.svc", context=context, timeout=20)
    connection.request("POST", path, json.dumps(review), {{"Content-Type": "application/json"}})
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]))
"""


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(cluster: Cluster, api: Api, toolbox: str) -> AsyncIterator[Namespace]:
    """The namespace of somebody else, with a pod `attacker`."""
    async with Namespace.created(cluster, api, f"attacker-{uuid.uuid4().hex[:5]}") as namespace:
        await namespace.apply(pod("attacker", container(toolbox, "sleep", "3600")))
        await namespace.ready("attacker")
        yield namespace


async def _posted(tenant: Namespace, *questions: tuple[str, Object]) -> list[tuple[int, str]]:
    """What the pod is answered: HTTP status and body of each."""
    command = ("exec", "--stdin", "attacker", "--", "python3", "-c", _POST)
    said = await tenant.kubectl(*command, stdin=json.dumps(questions).encode())
    return [(status, body) for status, body in map(json.loads, said.splitlines())]


def _review(kind: str, before: Object | None, now: Object, user: str) -> Object:
    metadata = now["metadata"]
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": "", "version": "v1", "kind": kind},
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "operation": "CREATE" if before is None else "UPDATE",
        "userInfo": {"username": user},
        "object": now,
        "oldObject": before,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _eviction(victim: Object) -> Object:
    """Volcano's scheduler evicts a pod, as the API server would tell of it."""
    condition = {"type": "DisruptionTarget", "status": "True"}
    status = {**victim["status"], "conditions": [*victim["status"]["conditions"], condition]}
    return _review("Pod", victim, {**victim, "status": status}, SCHEDULER)


async def _paths(api: Api) -> dict[str, str]:
    """Where the API server finds a webhook, by what stands behind the secret segment."""
    body = await api.get("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", RELEASE)
    known = [hook["clientConfig"]["service"]["path"] for hook in body["webhooks"]]
    return {f"/{path.split('/', 2)[2]}": path for path in known}


def _forged(paths: Mapping[str, str], reviews: Mapping[str, Object]) -> list[tuple[str, Object]]:
    """Each at the paths of whoever knows nothing, or was told those of other webhooks."""
    nobody = ("", "/", "/%00", f"/{secrets.token_hex(32)}")
    guessed = [(f"{before}{path}", review) for path, review in reviews.items() for before in nobody]
    told = [
        (f"/{known.split('/')[1]}{path}", review)
        for path, review in reviews.items() for other, known in paths.items() if other != path
    ]  # fmt: skip
    return [*guessed, *told]


async def test_a_review_that_a_pod_has_forged_is_not_answered_and_changes_nothing(
    namespace: Namespace, tenant: Namespace, toolbox: str, installed_with_volcano: Product, api: Api, audit: Audit
) -> None:
    env = [{"name": CHECKPOINT_VARIABLE, "value": "theirs"}]
    await namespace.apply(pod("victim", container(toolbox, *counting(counts=None), env=env), schedulerName="volcano"))
    victim = await namespace.ready("victim")
    assert victim["metadata"]["labels"][PROTECTED] == "true"
    eviction = _eviction(victim)
    another = {"apiVersion": "v1", "metadata": {"name": "new", "namespace": namespace.name}, "spec": victim["spec"]}
    reviews = {
        STATUSES: eviction,
        PODS: _review("Pod", None, another, "system:serviceaccount:kube-system:job-controller"),
        JOBS: eviction,
    }
    paths = await _paths(api)
    assert set(await _posted(tenant, *_forged(paths, reviews))) == {(404, "")}

    assert await _seen(namespace, audit) == []
    eviction = _eviction(await namespace.get("v1", "Pod", "victim"))
    ((status, body),) = await _posted(tenant, (paths[STATUSES], eviction))
    assert (status, json.loads(body)["response"]["status"]["code"]) == (200, 429), "else it would show nothing"
    await reached(namespace, "PreemptionHold", HoldStep.HOLDING)
    (mark,) = [one for one in of_ours(audit, namespace.name) if _is_mark(one)]
    assert mark.user.endswith(f":{WEBHOOKS}")


async def _seen(namespace: Namespace, audit: Audit) -> list[Any]:
    """What ours have written in the namespace, and what is said of its pods."""
    events = [one["message"] for one in await namespace.events() if one["source"].get("component") == "cedana-sched"]
    return [*of_ours(audit, namespace.name), *events]


def _is_mark(write: Write) -> bool:
    return write.resource == "pods" and EVICTION_REQUESTED in json.dumps(write.body)
