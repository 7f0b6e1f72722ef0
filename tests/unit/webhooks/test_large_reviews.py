"""What one review costs is bounded by what is looked at, whatever a tenant writes; others are answered meanwhile."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_kueue.webhooks import JOBS
from cedana_sched_volcano.objects import SCHEDULER_NAME
from cedana_sched_volcano.vcjob_admission import HARMLESS, VCJOB, VcjobAdmission
from cedana_sched_webhooks import admission, admission_types, pod_admission, server
from cedana_sched_webhooks.admission import LARGEST_BYTES, Answer, Request, Shape
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.main import create_handlers
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.registrations import PODS, STATUSES
from cedana_sched_webhooks.replica_numbers import Job, ReplicaNumbers
from cedana_sched_webhooks.schedulers import Endpoint, Handler
from cedana_sched_webhooks.server import LARGE_AT_ONCE, admission_application
from tests.unit.webhooks.admission_builders import (
    KUEUE,
    checkpoint,
    configuration,
    knowledge,
    kueue_handlers,
    pod,
    suspension,
)
from tests.unit.webhooks.holds.test_pod_hold import SCHEDULER, eviction
from tests.unit.webhooks.test_pod_admission_properties import any_pod, anything_known

MANY = 20_000
VARIABLE = {"name": CHECKPOINT_VARIABLE, "value": "sim"}
TOKEN = "t" * 32
FILLERS: dict[str, Object] = {
    "tolerations": {"tolerations": [{}] * MANY},
    "volumes": {"volumes": [{"name": ""}] * MANY},
    "gates": {"schedulingGates": [{"name": ""}] * MANY},
    "mounts": {"containers": [{"name": "main", "env": [VARIABLE], "volumeMounts": [{"name": ""}] * MANY}]},
    "env": {"containers": [{"name": "main", "env": [{"name": "A"}] * MANY + [VARIABLE]}]},
    "ports": {"containers": [{"name": "main", "env": [VARIABLE], "ports": [{}] * MANY}]},
    "node selector": {"nodeSelector": {f"l{number}": "" for number in range(MANY)}},
}
RESTORE_CONTAINER = {"name": names.RESTORE_CONTAINER, "lifecycle": {}, "env": [{"name": "A"}, {"name": "LD_X"}], "x": 1}
RESERVED: dict[str, tuple[str, Any]] = {
    "container": ("initContainers", RESTORE_CONTAINER),
    "volume": ("volumes", {"name": names.RESTORE_VOLUME, "hostPath": {"path": "/"}}),
    "other volume": ("volumes", {"name": "data", "emptyDir": {}}),
    "its mount": ("containers", {"name": "m", "volumeMounts": [{"name": names.RESTORE_VOLUME, "mountPath": "/x"}]}),
    "its name": ("ephemeralContainers", {"name": names.RESTORE_CONTAINER}),
    "users": ("hostUsers", False),
    "gate": ("schedulingGates", {"name": names.RESTORE_GATE}),
}
"""What looks like ours, or decides how ours looks."""
POLICIES = [{"event": "PodFailed", "action": "TerminateJob"}]


class Nobody:
    def __init__(self) -> None:
        self.wanted: list[str] = []

    def enqueue_mark(self, pod: Metadata, by: str) -> None:
        del by
        self.wanted.append(pod.uid)


class SlowServer:
    """Answers nobody before it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self.answers = asyncio.Event()

    async def get(self, *_: object, **__: object) -> Job:
        self.asked.put_nowait(None)
        await self.answers.wait()
        return Job()


def review(body: Any, before: Any = None, *, user: str = "u", dry_run: bool = True) -> bytes:
    asked = {"uid": "7", "namespace": "lab", "object": body, "oldObject": before, "dryRun": dry_run}
    return json.dumps({"request": {**asked, "userInfo": {"username": user}}}, separators=(",", ":")).encode()


def large(body: Object) -> Object:
    """The same, and larger than anybody means."""
    return {**body, "spec": {**body["spec"], "tolerations": [{}] * (LARGEST_BYTES // 2)}}


def calls(work: Callable[[], object]) -> int:
    """How many functions it calls, also of C."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def answers(
    known: AdmissionCaches | None = None, marker: Nobody | None = None, api: object = None
) -> dict[str, Handler]:
    known = known or knowledge()
    own = create_handlers(known, configuration(), ReplicaNumbers(cast("Api", api)), marker or Nobody())
    return {**own, **kueue_handlers(known)}


def told(path: str, body: bytes, known: AdmissionCaches | None = None, marker: Nobody | None = None) -> Answer:
    """What a handler says, as the server asks it."""
    endpoint = answers(known, marker)[path]
    assert isinstance(endpoint, Endpoint)
    said: Answer = asyncio.run(cast("Any", endpoint(admission.read(body, endpoint.shape))))
    return said


@settings(deadline=None, max_examples=200)
@given(any_pod(), anything_known(), st.sets(st.sampled_from(sorted(RESERVED))))
def test_what_is_looked_at_is_changed_as_the_whole_pod_would_be(
    body: Object, known: AdmissionCaches, reserved: set[str]
) -> None:
    for name in sorted(reserved):
        kind, value = RESERVED[name]
        body["spec"][kind] = [*(body["spec"].get(kind) or ()), value] if isinstance(value, dict) else value
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("secrets.token_urlsafe", lambda number: TOKEN)
        whole, part = (
            pod_admission.admit_pod(admission.read(review(body), shape), known, configuration())
            for shape in (Shape(dict), admission_types.POD)
        )
    assert apply_json_patch(body, part.patch) == apply_json_patch(body, whole.patch)
    assert (part.decision, part.warnings) == (whole.decision, whole.warnings)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("path", [PODS, f"{PODS}, continued"])
def test_what_a_pod_costs_does_not_grow_with_what_nobody_reads(filler: str, path: str) -> None:
    known = knowledge(checkpoints=[checkpoint(1)] if path != PODS else [])
    few, many = review(pod()), review(pod(**FILLERS[filler]))
    assert len(many) < LARGEST_BYTES
    told(PODS, few, known), told(PODS, many, known)
    base, costs = calls(lambda: told(PODS, few, known)), calls(lambda: told(PODS, many, known))
    assert costs < base + 5 * MANY // 2, "each of them is passed over twice at most"
    if filler in {"tolerations", "ports"}:
        assert costs < 2 * base


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(large(pod()), id="bytes"),
        pytest.param(
            pod(containers=[{"name": f"c{number}", "env": [VARIABLE]} for number in range(257)]), id="containers"
        ),
        pytest.param(pod(initContainers=[{"name": f"c{number}"} for number in range(257)]), id="init containers"),
    ],
)
def test_a_large_pod_is_let_in_unprotected_and_told_so_at_once(body: Object) -> None:
    answer = told(PODS, review(body))
    assert (answer.decision, answer.refusal) == ("large", None)
    assert "not protected" in answer.warnings[0]
    after = apply_json_patch(body, answer.patch)
    assert after["metadata"]["labels"] == {names.PROTECTED: "false"}
    assert "512 KiB" in after["metadata"]["annotations"][names.NOT_PROTECTED]
    assert after["spec"] == body["spec"]


def test_a_large_pod_costs_no_more_than_a_small_one() -> None:
    few, many = review(pod()), review(large(pod()))
    told(PODS, few), told(PODS, many)
    assert calls(lambda: told(PODS, many)) < 2 * calls(lambda: told(PODS, few))


@pytest.mark.parametrize("gates", [[names.RESTORE_GATE], ["other", names.RESTORE_GATE, "last"]])
def test_what_only_we_write_is_taken_from_a_large_pod(gates: list[str]) -> None:
    labels, annotations = {names.PROTECTED: "true", "mine": "x"}, {names.RESTORE_IDENTITY: "sim/0", "mine": "x"}
    body = large(pod(labels=labels, annotations=annotations, schedulingGates=[{"name": one} for one in gates]))
    after = patched_lists(body, told(PODS, review(body)).patch)
    assert after["metadata"]["labels"] == {names.PROTECTED: "false", "mine": "x"}
    assert after["metadata"]["annotations"].keys() == {names.NOT_PROTECTED, "mine"}
    assert [one["name"] for one in after["spec"]["schedulingGates"]] == [one for one in gates if "/" not in one]


def patched_lists(body: Object, patch: Any) -> Object:
    """`apply_json_patch` knows no removal from a list; this one's is the last operation."""
    *first, last = patch
    after = apply_json_patch(body, first)
    head, _, index = last["path"].rpartition("/")
    assert (last["op"], head) == ("remove", "/spec/schedulingGates")
    del after["spec"]["schedulingGates"][int(index)]
    return after


def test_a_mirror_pod_is_left_alone_also_when_it_is_large() -> None:
    assert told(PODS, review(large(pod(annotations={admission_types.MIRROR: "x"})))) == Answer("not-ours")


def test_a_reason_is_no_longer_than_the_api_server_takes_it() -> None:
    body = pod("x" * 300_000)
    answer = told(PODS, review(body))
    assert answer.decision == "unclear"
    assert len(apply_json_patch(body, answer.patch)["metadata"]["annotations"][names.NOT_PROTECTED]) <= 1024


def test_the_eviction_of_a_large_job_is_held_as_that_of_a_small_one() -> None:
    wanted = suspension()
    assert wanted.object is not None
    assert wanted.old_object is not None
    template = large(wanted.object["spec"]["template"])
    now, before = ({**one, "spec": {**one["spec"], "template": template}} for one in (wanted.object, wanted.old_object))
    small, many = review(wanted.object, wanted.old_object, user=KUEUE), review(now, before, user=KUEUE)
    for body in (small, many):
        assert told(JOBS, body).decision == "not-yet-held"
    assert calls(lambda: told(JOBS, many)) < 2 * calls(lambda: told(JOBS, small))


@pytest.mark.parametrize("kind", ["spec", "labels"])
def test_the_eviction_of_a_large_pod_is_held_as_that_of_a_small_one(kind: str) -> None:
    wanted = eviction()
    assert wanted.object is not None
    assert wanted.old_object is not None
    filler: Object = {"spec": {"tolerations": [{}] * (1 << 19)}}
    if kind == "labels":
        labels = wanted.object["metadata"]["labels"] | {f"l{number}": "x" * 50 for number in range(MANY)}
        filler = {"metadata": {**wanted.object["metadata"], "labels": labels}}
    marker = Nobody()
    small = review(wanted.object, wanted.old_object, user=SCHEDULER, dry_run=False)
    many = review({**wanted.object, **filler}, {**wanted.old_object, **filler}, user=SCHEDULER, dry_run=False)
    for body in (small, many):
        settings = configuration(scheduler_users=[SCHEDULER])
        endpoint = create_handlers(knowledge(), settings, ReplicaNumbers(cast("Api", None)), marker)[STATUSES]
        assert isinstance(endpoint, Endpoint)
        answer = asyncio.run(cast("Any", endpoint(admission.read(body, endpoint.shape))))
        assert answer.decision == "not-yet-held"
        assert answer.refusal is not None
    assert len(marker.wanted) == 2


@pytest.mark.parametrize("annotations", [{}, {HARMLESS: "true"}])
@pytest.mark.parametrize("filler", ["tolerations", "policies", "tasks", "containers"])
def test_what_a_vcjob_costs_is_bounded(filler: str, annotations: dict[str, str]) -> None:
    queues: dict[str, Any] = {}

    def vcjob(number: int) -> bytes:
        template = pod()
        spec: Object = {"minAvailable": 1, "policies": POLICIES}
        tasks = [{"name": "sim", "replicas": 4, "template": template}]
        match filler:
            case "tolerations":
                template["spec"]["tolerations"] = [{}] * number
            case "policies":
                spec["policies"] = POLICIES * (number // 4)
            case "tasks":
                tasks = tasks + [{"name": "x"}] * (number // 2)
            case "containers":
                template["spec"]["containers"] += [{"name": "x"}] * number
        return review({"metadata": {"annotations": annotations}, "spec": {**spec, "tasks": tasks}})

    def ask(body: bytes) -> Answer:
        return asyncio.run(VcjobAdmission(queues.get).answer(admission.read(body, VCJOB)))

    few, many = vcjob(0), vcjob(MANY)
    assert len(many) < LARGEST_BYTES
    assert ask(many).decision == ("large" if filler != "tolerations" else ask(few).decision)
    assert calls(lambda: ask(many)) < 2 * calls(lambda: ask(few))


@pytest.fixture
def measured() -> Iterator[None]:
    tracemalloc.start(1)
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("measured")
async def test_while_the_api_server_is_asked_only_bytes_are_kept() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    body = pod(**FILLERS["env"])
    body["metadata"]["ownerReferences"] = [owner]
    sent = review(body)
    api = SlowServer()
    endpoint = answers(api=api)[PODS]
    assert isinstance(endpoint, Endpoint)

    def ask() -> asyncio.Future[Answer]:
        answering: asyncio.Future[Answer] = asyncio.ensure_future(endpoint.answer(admission.read(sent, endpoint.shape)))
        return answering

    waiting = [ask()]
    await api.asked.get()
    before, _ = tracemalloc.get_traced_memory()
    waiting += [ask() for _ in range(10)]
    for _ in range(10):
        await api.asked.get()
    after, _ = tracemalloc.get_traced_memory()
    api.answers.set()
    assert {one.decision for one in await asyncio.gather(*waiting)} == {"identified"}
    assert after - before < 10 * len(sent)


async def _served(
    endpoints: dict[str, Handler], work: Callable[[Callable[[str, bytes], Awaitable[Any]]], Awaitable[None]]
) -> None:
    application = admission_application(endpoints, asyncio.Event(), Metrics())
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        serve_http(application, 0, host="127.0.0.1") as port,
        aiohttp.ClientSession(connector=connector) as client,
    ):

        async def ask(path: str, body: bytes) -> Any:
            async with client.post(f"http://127.0.0.1:{port}{path}", data=io.BytesIO(body)) as answer:
                return (await answer.json())["response"]

        await work(ask)


async def test_a_few_large_reviews_are_read_at_a_time_and_small_ones_beside_them() -> None:
    entered, most, goes_on = 0, 0, asyncio.Event()

    async def slow(request: Request) -> Answer:
        nonlocal entered, most
        if request.name == "small":
            return Answer("small")
        entered += 1
        most = max(most, entered)
        await goes_on.wait()
        entered -= 1
        return Answer("slow")

    async def work(ask: Callable[[str, bytes], Awaitable[Any]]) -> None:
        body = review(pod(annotations={"x": "y" * 200_000}))
        small = json.dumps({"request": {"uid": "7", "name": "small", "object": pod()}}).encode()
        waiting = [asyncio.ensure_future(ask("/slow", body)) for _ in range(3 * LARGE_AT_ONCE)]
        async with asyncio.timeout(60):
            while entered < LARGE_AT_ONCE:
                assert (await ask("/slow", small))["allowed"]
            for _ in range(20):
                await ask("/slow", small)
        assert most == LARGE_AT_ONCE
        goes_on.set()
        assert all(one["allowed"] for one in await asyncio.gather(*waiting))
        assert most == LARGE_AT_ONCE

    await _served({"/slow": slow}, work)


async def test_who_says_nothing_of_large_objects_is_not_asked_about_them() -> None:
    asked: list[Request] = []

    async def note(request: Request) -> Answer:
        asked.append(request)
        return Answer("noted")

    async def work(ask: Callable[[str, bytes], Awaitable[Any]]) -> None:
        told = await ask("/note", review(large(pod())))
        assert told["allowed"]
        assert "larger than any that is meant" in told["warnings"][0]
        assert asked == []
        await ask("/note", review(pod()))
        assert len(asked) == 1

    await _served({"/note": note}, work)


async def test_an_object_before_that_is_none_costs_no_other() -> None:
    async def work(ask: Callable[[str, bytes], Awaitable[Any]]) -> None:
        assert (await ask("/validate/checkpointpolicies", review({"spec": {}}, {"metadata": "none"})))["allowed"]

    await _served(answers(), work)


async def test_a_body_is_read_to_its_bound_and_no_further() -> None:
    async def work(ask: Callable[[str, bytes], Awaitable[Any]]) -> None:
        with pytest.raises((aiohttp.ClientError, json.JSONDecodeError)):
            await ask(PODS, b" " * (server.LONGEST_REQUEST_BYTES + 1))
        assert (await ask(PODS, review(pod())))["patch"]

    await _served(answers(), work)


def test_pods_of_volcano_s_queues_are_looked_at_in_the_same_bounds() -> None:
    body = pod(None, schedulerName=SCHEDULER_NAME)
    request = admission.read(review(large(body)), admission_types.UNMARKED_POD)
    assert request.is_large
    assert request.object is None
    assert admission.read(review(body), admission_types.UNMARKED_POD).object is not None
