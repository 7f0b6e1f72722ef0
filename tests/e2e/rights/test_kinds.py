"""The API server takes our kinds as the models mean them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiException

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.client import Api, Object
from tests.cluster.fixtures.namespace import Namespace

pytestmark = [pytest.mark.any_shape, pytest.mark.usefixtures("kinds")]

NOW = "2026-11-21T12:00:00.123456Z"
POD_UID = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
POD = {"name": "md-run-0", "uid": POD_UID, "nodeName": "gpu-3"}
SPECS: dict[str, Object] = {
    "Checkpoint": {
        "uid": "c-1", "identity": {"id": "md-run"}, "podRef": POD, "adapter": "kueue", "holdUID": "h-1",
        "reason": "InCohortReclamation", "creationTime": NOW,
    },
    "PreemptionHold": {"uid": "h-1", "adapter": "kueue", "reason": "InCohortReclamation", "creationTime": NOW},
    "Restore": {"uid": "r-1", "identity": {"id": "md-run"}, "podRef": POD, "adapter": "kueue", "creationTime": NOW},
}  # fmt: skip


def of(kind: str, name: str = "md-run", **spec: Any) -> Object:
    body = {**SPECS.get(kind, {}), **spec}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": body}


async def refusal(work: Any) -> str:
    with pytest.raises(ApiException) as caught:
        await work
    assert caught.value.status in {400, 422}
    return str(caught.value.body)


@pytest.mark.parametrize("kind", SPECS)
async def test_a_record_is_taken_and_its_spec_is_never_changed(namespace: Namespace, kind: str) -> None:
    await namespace.api.create(of(kind), namespace.name)
    change = {"spec": {"adapter": "volcano"}}
    assert "is never changed" in await refusal(namespace.api.patch(API_VERSION, kind, "md-run", change, namespace.name))
    status = {"status": {"step": "Ready" if kind == "Checkpoint" else "Released", "deadline": NOW}}
    if kind != "Restore":
        await namespace.api.patch(API_VERSION, kind, "md-run", status, namespace.name, subresource="status")
    assert (await namespace.get(API_VERSION, kind, "md-run"))["spec"]["adapter"] == "kueue"


async def test_what_was_left_out_is_filled_in_where_people_see_it(api: Api, namespace: Namespace) -> None:
    name = namespace.name
    await api.create(of("CheckpointPolicy", name, deadlineSeconds=30))
    try:
        found = await api.get(API_VERSION, "CheckpointPolicy", name)
        assert found["spec"]["deadlineSeconds"] == 30
        assert found["spec"]["onRestoreFailure"] == "ColdStart"
        assert found["spec"]["retention"] == {"keepLast": 3}
    finally:
        await api.delete(API_VERSION, "CheckpointPolicy", name)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "exactly one of s3 and posix"),
        ({"s3": {"bucket": "lab"}, "posix": {"path": "/data"}}, "exactly one of s3 and posix"),
        ({"s3": {"bucket": "lab", "endpoint": "http://s3.example"}}, "set s3.allowHttp"),
        ({"posix": {"path": "data"}}, "spec.posix.path"),
    ],
)
async def test_a_storage_that_cannot_be_meant_is_refused(api: Api, spec: Object, said: str) -> None:
    assert said in await refusal(api.create(of("CheckpointStorage", "wrong", **spec)))


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ({"names": ["lab"]}, "spec.allowedNamespaces.from"),
        ({"from": "Selector"}, "spec.allowedNamespaces.from"),
        ({"from": "Names", "names": ["*"]}, "spec.allowedNamespaces.names[0]"),
    ],
)
async def test_a_policy_that_does_not_say_clearly_for_whom_is_refused(api: Api, allowed: Object, said: str) -> None:
    assert said in await refusal(api.create(of("CheckpointPolicy", "wrong", allowedNamespaces=allowed)))


async def test_records_are_found_by_node_and_shown_as_people_expect(namespace: Namespace) -> None:
    await namespace.apply(of("Checkpoint"), of("Checkpoint", "other", podRef={**POD, "nodeName": "gpu-4"}))
    status = {"phase": "Ready", "step": "Ready", "deadline": NOW, "readSize": "3.1 GiB"}
    await namespace.api.patch(
        API_VERSION, "Checkpoint", "md-run", {"status": status}, namespace.name, subresource="status"
    )
    shown, by_category = await asyncio.gather(
        namespace.kubectl("get", "cckpt", "--field-selector=spec.podRef.nodeName=gpu-3,status.phase=Ready"),
        namespace.kubectl("get", "cedana", "-o", "name"),
    )
    head, line = shown.splitlines()
    assert head.split() == ["NAME", "ID", "INDEX", "GEN", "PHASE", "READ", "STORED", "AGE"]
    assert line.split()[:4] == ["md-run", "md-run", "0", "Ready"]
    assert "checkpoint.sched.cedana.ai/other" in by_category.splitlines()


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("Checkpoint", {"uid": "../../../etc/cron.d/x"}, "spec.uid"),
        ("Checkpoint", {"podRef": {**POD, "uid": "../victim"}}, "spec.podRef.uid"),
        ("Checkpoint", {"podRef": {**POD, "name": "../md-run-0"}}, "spec.podRef.name"),
        ("Checkpoint", {"identity": {"id": "a/../b"}}, "spec.identity.id"),
        ("Checkpoint", {"identity": {"id": "md-run", "index": 2**40}}, "spec.identity.index"),
        ("PreemptionHold", {"uid": "a/b"}, "spec.uid"),
        ("Restore", {"identity": {"id": "md-run", "container": ".."}}, "spec.identity.container"),
    ],
)
async def test_words_that_lead_elsewhere_are_refused(namespace: Namespace, kind: str, spec: Object, said: str) -> None:
    assert said in await refusal(namespace.api.create(of(kind, **spec), namespace.name))


@pytest.mark.parametrize("kind", ["Checkpoint", "PreemptionHold"])
async def test_no_deadline_is_later_than_any_policy_allows(namespace: Namespace, kind: str) -> None:
    await namespace.api.create(of(kind), namespace.name)
    for deadline, is_taken in (("2026-11-22T12:00:00.123456Z", True), ("2999-01-01T00:00:00.000000Z", False)):
        patch = {"status": {"deadline": deadline}}
        work = namespace.api.patch(API_VERSION, kind, "md-run", patch, namespace.name, subresource="status")
        if is_taken:
            await work
        else:
            assert "later than any policy allows" in await refusal(work)
