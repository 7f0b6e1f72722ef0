"""`cedana-sched doctor --cluster`, as a person types it, says of a real cluster what is so."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cedana_sched.cli.doctor.cluster.examine import OF_CLUSTER, OF_INSTALLATION
from cedana_sched.model.objects.names import API_VERSION, GROUP, ID, NODE_PREPARED, PROTECTED
from tests.cluster.api.admission import wait_until_created_as
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for, wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.installation import Product
from tests.e2e.product.rendering import RELEASE

pytestmark = [pytest.mark.any_shape]

_REGISTRATIONS = "admissionregistration.k8s.io/v1"
_MUTATING = (_REGISTRATIONS, "MutatingWebhookConfiguration", RELEASE)
_VALIDATING = (_REGISTRATIONS, "ValidatingWebhookConfiguration", RELEASE)
_PODS = f"pods.{GROUP}"
_PARTS = {"installation", *(name for name, _ in (*OF_INSTALLATION, *OF_CLUSTER))}
_OF_TESTS = {"storage", "runtimes"}
"""Checks with something to warn of here: a bucket without TLS that pods alone reach, and older runtimes."""


async def test_all_parts_are_found_and_webhooks_that_are_not_reached_are_noticed(
    installed_with_kueue: Product, api: Api, cluster: Cluster
) -> None:
    await _settled(api, cluster)
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    async with Namespace.created(cluster, api, f"doctor-{uuid.uuid4().hex[:5]}", restricted) as namespace:
        status, found = await _doctor(cluster, namespace)
        assert {one["check"] for one in found} >= _PARTS
        unwell = [one for one in found if one["level"] != "ok" and not _is_about_other_schedulers(one)]
        assert [one for one in unwell if one["check"] not in _OF_TESTS or one["level"] == "fail"] == []
        assert (status == 1) == any(one["level"] == "fail" for one in found)
        where = f"(dry run in namespace {namespace.name})"
        assert _of_webhooks(found)[-1]["says"] == f"the API server calls {_PODS}, which prepared a pod {where}"

        async with _called_in_vain(api):
            status, found = await _doctor(cluster, namespace)
        *others, called = _of_webhooks(found)
        assert [one["level"] for one in others] == ["ok"] * 3, "what is registered and ready does not show it"
        assert called["level"] == "fail"
        assert f"no answer from {_PODS}, 3 times in a row" in called["says"]
        assert status == 1
        assert await api.objects("v1", "Pod", namespace.name) == []


async def _doctor(cluster: Cluster, namespace: Namespace) -> tuple[int | None, list[Object]]:
    """Its exit status, and what it finds."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("cedana-sched"), "doctor", "--cluster", "--output=json",
        f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace.name}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode in {0, 1}, err.decode()
    return process.returncode, list(json.loads(out))


def _of_webhooks(found: list[Object]) -> list[Object]:
    return [one for one in found if one["check"] == "webhooks"]


def _is_about_other_schedulers(finding: Object) -> bool:
    """Whether another test has left a scheduler there that this installation does not follow."""
    check, says = str(finding["check"]), str(finding["says"])
    return check.startswith("volcano") or says.startswith(("volcano is here", "armada is here"))


async def _settled(api: Api, cluster: Cluster) -> None:
    """Return when nothing has yet to come that an installation brings."""
    await wait_for_all(
        api, "v1", "Node", lambda nodes: len(nodes) == len(cluster.nodes), selector=f"{NODE_PREPARED}=true"
    )
    await wait_for_all(
        api, API_VERSION, "CheckpointStorage", lambda found: bool(found) and all(map(has_condition("Ready"), found))
    )
    for configuration in (_MUTATING, _VALIDATING):
        await wait_for(api, *configuration, _is_trusted)
    await wait_until_created_as(api, _asking(), "default", _is_marked, "no webhook prepares pods")


def _is_trusted(configuration: Object) -> bool:
    return all(webhook["clientConfig"].get("caBundle") for webhook in configuration["webhooks"])


def _asking() -> Object:
    body = pod("asking", container("none"))
    body["metadata"]["annotations"] = {ID: "asking"}
    return body


def _is_marked(body: Object) -> bool:
    return PROTECTED in body["metadata"].get("labels", {})


@asynccontextmanager
async def _called_in_vain(api: Api) -> AsyncIterator[None]:
    """The API server calls our pod webhook where nobody listens; all of ours is there, and registered."""
    names = [webhook["name"] for webhook in (await api.get(*_MUTATING))["webhooks"]]
    place = f"/webhooks/{names.index(_PODS)}"

    async def called_at(port: int) -> None:
        is_it = {"op": "test", "path": f"{place}/name", "value": _PODS}
        change = {"op": "replace", "path": f"{place}/clientConfig/service/port", "value": port}
        await api.patch(*_MUTATING, [is_it, change])

    await called_at(444)
    try:
        await wait_until_created_as(
            api, _asking(), "default", lambda body: not _is_marked(body), "a webhook answers where nobody listens"
        )
        yield
    finally:
        await called_at(443)
        await wait_until_created_as(api, _asking(), "default", _is_marked, "no webhook prepares pods")
