"""Whatever a review holds, on every path: the next one is answered, and no pod is ever refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import aiohttp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api
from cedana_sched.model.objects import names
from cedana_sched_webhooks.main import create_handlers
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.registrations import PODS
from cedana_sched_webhooks.replica_numbers import ReplicaNumbers
from cedana_sched_webhooks.server import admission_application
from tests.unit.webhooks.admission_builders import configuration, knowledge, kueue_handlers, pod

KEYS = (
    names.ID,
    names.INDEX,
    names.RESTORE_FROM,
    names.POLICY,
    names.QUEUE_POLICY,
    names.RESTORE_IDENTITY,
    names.EVICTION_REQUESTED,
    names.ORIGINAL_GRACE_PERIOD,
    names.EXPECT_SNAPSHOT,
)
TEXTS = st.text(max_size=8) | st.sampled_from(["", "-1", "9" * 5_000, "md@" + "9" * 5_000, "../x", "[" * 3_000, "٣"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "spec", "status", "annotations", "labels", "containers"]), inner)
    ),
    max_leaves=8,
)
DEEP = b'{"request": {"uid": "7", "object": {"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}}"
fuzz = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


class _Nobody:
    def enqueue_mark(self, pod: Metadata, by: str) -> None: ...


def _review(body: Any, before: Any = None) -> bytes:
    request = {"uid": "7", "namespace": "lab", "object": body, "oldObject": before, "userInfo": {"username": "u"}}
    return json.dumps({"request": request}).encode()


async def _asked(bodies: list[tuple[str, bytes]]) -> list[tuple[int, Any]]:
    known = knowledge()
    answers = create_handlers(known, configuration(), ReplicaNumbers(cast("Api", None)), _Nobody()) | dict(
        kueue_handlers(known)
    )
    application, found = admission_application(answers, asyncio.Event(), Metrics()), []
    async with serve_http(application, 0, host="127.0.0.1") as port, aiohttp.ClientSession() as client:
        for path, body in ((known, body) for known in answers for path, body in bodies if path in {known, ""}):
            async with client.post(f"http://127.0.0.1:{port}{path}", data=body) as answer:
                found.append((answer.status, await answer.json() if answer.status == 200 else None))
        async with client.post(f"http://127.0.0.1:{port}{PODS}", data=_review(pod())) as answer:
            assert answer.status == 200
            assert (await answer.json())["response"]["patch"]
    return found


@fuzz
@given(st.lists(st.binary(max_size=40) | st.builds(_review, JSON, JSON), min_size=1, max_size=4))
def test_a_review_of_anything_costs_no_other(bodies: list[bytes]) -> None:
    asyncio.run(_asked([("", body) for body in [*bodies, DEEP]]))


@fuzz
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), TEXTS), min_size=1, max_size=5), TEXTS)
def test_a_pod_with_any_texts_is_answered_and_let_in(annotations: list[dict[str, str]], label: str) -> None:
    bodies = [pod(None, annotations=texts, labels={names.PROTECTED: label}) for texts in annotations]
    for status, answer in asyncio.run(_asked([(PODS, _review(body)) for body in bodies])):
        assert status == 200
        assert answer["response"]["allowed"]
