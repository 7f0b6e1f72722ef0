"""Pods of a Job without indices, or of a ReplicaSet, get numbers by chance; all others keep theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError
from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import COMPLETION_INDEX, POD_INDEX
from cedana_sched.model.records import CheckpointStep
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import pod_admission, replica_numbers
from cedana_sched_webhooks.admission import Answer
from cedana_sched_webhooks.replica_numbers import LARGEST_NUMBER, ReplicaNumbers
from tests.unit.webhooks.admission_builders import checkpoint, configuration, creation, knowledge, pod


class _Server:
    """Knows some controllers, by kind and name; counts what it is asked."""

    def __init__(self, **controllers: Object) -> None:
        self._controllers = controllers
        self.siblings: list[Object] = []
        self.unreachable = False
        self.asked = 0

    async def list_each(
        self,
        resource: Resource,
        namespace: str,
        query: dict[str, str],
        see: Callable[[msgspec.Raw], None],
        *,
        only_metadata: bool,
    ) -> str:
        assert only_metadata
        self.asked += 1
        if self.unreachable:
            raise ApiUnavailableError("no answer")
        assert query["labelSelector"] == f"{names.PROTECTED}=true,pod-template-hash=a"
        for one in self.siblings:
            see(msgspec.Raw(msgspec.json.encode(one)))
        return "1"

    async def get(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        self.asked += 1
        if self.unreachable:
            raise ApiUnavailableError("no answer")
        if resource.kind not in self._controllers:
            raise AbsentError(name)
        found = self._controllers[resource.kind]
        return msgspec.convert({**found, "metadata": {"uid": "1", **found.get("metadata", {})}}, into)


def _owned(kind: str, api_version: str = "batch/v1", **labels: str) -> Object:
    body = pod(labels=labels)
    owner = {"apiVersion": api_version, "kind": kind, "name": "sim", "uid": "1", "controller": True}
    body["metadata"]["ownerReferences"] = [owner]
    return body


def _admission(server: _Server, **known: Any) -> pod_admission.PodAdmission:
    return pod_admission.PodAdmission(knowledge(**known), configuration(), ReplicaNumbers(cast("Api", server)))


async def _annotations(body: Object, server: _Server, **known: Any) -> dict[str, str]:
    answer = await _admission(server, **known).answer(creation(body))
    annotations: dict[str, str] = apply_json_patch(body, answer.patch)["metadata"]["annotations"]
    return annotations


@pytest.mark.parametrize(
    ("kind", "api_version", "spec"),
    [("Job", "batch/v1", {"parallelism": 3}), ("ReplicaSet", "apps/v1", {"replicas": 3})],
)
async def test_siblings_have_numbers_of_their_own(kind: str, api_version: str, spec: Object) -> None:
    server = _Server(**{kind: {"spec": spec}})
    numbers = {int((await _annotations(_owned(kind, api_version), server))[names.INDEX]) for _ in range(20)}
    assert len(numbers) == 20
    assert all(0 <= number < LARGEST_NUMBER for number in numbers)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(), id="nobody's"),
        pytest.param(_owned("StatefulSet", "apps/v1", **{POD_INDEX: "0"}), id="of a kind that numbers"),
    ],
)
async def test_nobody_is_asked_about_other_pods(body: Object) -> None:
    server = _Server()
    assert (await _annotations(body, server))[names.INDEX] == "0"
    assert server.asked == 0


async def test_one_pod_of_an_indexed_job_asks_for_all() -> None:
    server = _Server(Job={"spec": {"parallelism": 3}})
    admission = _admission(server)
    for index in range(3):
        body = _owned("Job", **{COMPLETION_INDEX: str(index)})
        after = apply_json_patch(body, (await admission.answer(creation(body))).patch)
        assert after["metadata"]["annotations"][names.INDEX] == str(index)
    assert server.asked == 1


async def test_only_pod_of_a_job_is_number_0_and_continues_at_once() -> None:
    annotations = await _annotations(_owned("Job"), _Server(Job={"spec": {}}), checkpoints=[checkpoint(4)])
    assert annotations[names.INDEX] == "0"
    assert annotations[names.RESTORE_IDENTITY] == "sim/0@4"


async def test_pod_whose_job_cannot_be_read_takes_no_other_ones_number() -> None:
    server = _Server()
    server.unreachable = True
    assert int((await _annotations(_owned("Job"), server))[names.INDEX]) > 0


async def test_unprotected_pods_cost_no_question() -> None:
    server = _Server(Job={"spec": {"parallelism": 3}})
    body = _owned("Job")
    body["spec"]["containers"][0]["env"] = []
    assert (await _admission(server).answer(creation(body))).decision == "not-ours"
    assert server.asked == 0


@pytest.mark.parametrize("step", [CheckpointStep.READY, CheckpointStep.DUMPING])
async def test_sibling_waits_for_the_coordinators_choice(step: CheckpointStep) -> None:
    body, server = _owned("Job"), _Server(Job={"spec": {"parallelism": 3}})
    answer = await _admission(server, checkpoints=[checkpoint(1, index=7, step=step)]).answer(creation(body))
    assert answer.decision == "gated"
    after = apply_json_patch(body, answer.patch)
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/*"
    assert after["spec"]["schedulingGates"] == [{"name": names.RESTORE_GATE}]
    assert after["spec"]["runtimeClassName"] == names.RUNTIME_CLASS


async def test_sibling_begins_at_once_where_there_is_nothing_to_choose() -> None:
    body, server = _owned("Job"), _Server(Job={"spec": {"parallelism": 3}})
    failed = checkpoint(None, index=7, step=CheckpointStep.FAILED)
    answer = await _admission(server, checkpoints=[failed]).answer(creation(body))
    assert answer.decision == "identified"


async def test_a_second_call_changes_nothing() -> None:
    body, server = _owned("Job"), _Server(Job={"spec": {"parallelism": 3}})
    admission = _admission(server, checkpoints=[checkpoint(1, index=7)])
    after = apply_json_patch(body, (await admission.answer(creation(body))).patch)
    assert (await admission.answer(creation(after))).decision == "unchanged"


def _sibling(owner_uid: str = "1", **metadata: Any) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "sim", "uid": owner_uid, "controller": True}
    return {"metadata": {"name": "sim-2", "ownerReferences": [owner], **metadata}}


async def _answer_beside(*siblings: Object, looks: bool = True, unreachable: bool = False) -> Answer:
    """The answer for a new pod of a ReplicaSet that has these pods."""
    server = _Server()
    server.siblings, server.unreachable = list(siblings), unreachable
    numbers = ReplicaNumbers(cast("Api", server), looks_for_replaced=looks)
    body = _owned("ReplicaSet", "apps/v1", **{"pod-template-hash": "a"})
    return await pod_admission.PodAdmission(knowledge(), configuration(), numbers).answer(creation(body))


_DELETED = {"deletionTimestamp": "2040-05-01T12:10:00Z"}
_LONG_AGO = {"deletionTimestamp": "2026-05-01T12:10:00Z"}
"""A node that is dead keeps it."""


@pytest.mark.parametrize("said", [{}, {names.NOT_PREEMPTED: names.NOT_BY_SCHEDULER}], ids=["nothing", "handed over"])
async def test_replacement_of_a_pod_that_is_being_deleted_waits_until_it_is_known_whether_that_is_saved(
    said: Object,
) -> None:
    assert (await _answer_beside(_sibling(), _sibling(annotations=said, **_DELETED))).decision == "gated"


@pytest.mark.parametrize(
    "sibling",
    [
        _sibling(),
        _sibling(owner_uid="2", **_DELETED),
        _sibling(annotations={names.NOT_PREEMPTED: "true"}, **_DELETED),
        _sibling(**_LONG_AGO),
    ],
    ids=["runs on", "of another controller", "deleted for good", "on a dead node"],
)
async def test_pod_that_replaces_none_begins_at_once(sibling: Object) -> None:
    assert (await _answer_beside(sibling)).decision == "identified"


async def test_siblings_are_not_read_where_no_adapter_explains_deletions() -> None:
    assert (await _answer_beside(_sibling(**_DELETED), looks=False)).decision == "identified"


async def test_pod_whose_siblings_cannot_be_read_begins_at_once() -> None:
    assert (await _answer_beside(_sibling(**_DELETED), unreachable=True)).decision == "identified"


async def test_a_second_call_leaves_the_choice_for_a_replacement_to_the_coordinator() -> None:
    server = _Server()
    server.siblings = [_sibling(**_DELETED)]
    numbers = ReplicaNumbers(cast("Api", server), looks_for_replaced=True)
    admission = pod_admission.PodAdmission(knowledge(), configuration(), numbers)
    body = _owned("ReplicaSet", "apps/v1", **{"pod-template-hash": "a"})
    once = apply_json_patch(body, (await admission.answer(creation(body))).patch)
    assert once["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/*"
    assert (await admission.answer(creation(once))).decision == "unchanged"


async def test_new_pods_of_one_namespace_delay_those_of_no_other() -> None:
    """A tenant may create pods without end, and with `--dry-run=server` even without a quota."""
    read_all = asyncio.Event()

    class _Slow(_Server):
        async def list_each(self, resource: Resource, namespace: str, *rest: Any, **named: Any) -> str:
            if namespace == "flooded":
                await read_all.wait()
            return await super().list_each(resource, namespace, *rest, **named)

    numbers = ReplicaNumbers(cast("Api", _Slow()), looks_for_replaced=True)
    body = _owned("ReplicaSet", "apps/v1", **{"pod-template-hash": "a"})
    flood = [asyncio.create_task(numbers.distinguish(body, "flooded")) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert not (await numbers.distinguish(body, "lab")).replaces
    read_all.set()
    await asyncio.gather(*flood)


async def test_pod_whose_siblings_are_not_read_in_time_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Silent(_Server):
        async def list_each(self, *_: Any, **_named: Any) -> str:
            await asyncio.Event().wait()
            return ""

    monkeypatch.setattr(replica_numbers, "LIST_SECONDS", 0.01)
    numbers = ReplicaNumbers(cast("Api", _Silent()), looks_for_replaced=True)
    body = _owned("ReplicaSet", "apps/v1", **{"pod-template-hash": "a"})
    assert not (await numbers.distinguish(body, "lab")).replaces
