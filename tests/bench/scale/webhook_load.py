"""How long the webhooks take to answer a steady stream of questions: 500 a second, from beside the cluster.

Runs as a program of its own as well, in the network of the cluster's switch, where pods' addresses are known:
`webhook_load.py ADDRESS PORT OPERATIONS_PORT`, the AdmissionReviews on its standard input, one a line; it prints the
`Answers` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

CALLS_A_SECOND, SECONDS = 500, 10
AIM_SECONDS = 0.01
"""An edge of a bucket of the webhooks' own histogram."""
_CONTAINER = {"name": "main", "image": "x", "env": [{"name": "CEDANA_CHECKPOINT", "value": "md-0"}]}


class Answers(msgspec.Struct, frozen=True):
    """Seconds from when each call was due to its answer, and which share the replica itself counts within the aim."""

    times: list[float]
    share_within_aim: float


def pod_review(namespace: str, number: int) -> dict[str, object]:
    """A pod of a Job of bio's at CREATE."""
    labels = {"batch.kubernetes.io/job-completion-index": str(number % 10), "batch.kubernetes.io/job-name": "md-0"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"md-0-{number}", "namespace": namespace, "labels": labels},
        "spec": {"containers": [_CONTAINER]},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return _review(number, kind, namespace, pod, "CREATE", None)


def job_review(namespace: str, number: int) -> dict[str, object]:
    """Kueue's suspension of a protected Job that runs: it is refused until somebody takes it up."""
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"other-{number}", "namespace": namespace, "uid": str(UUID(int=number))},
        "spec": {"suspend": True, "template": {"spec": {"containers": [_CONTAINER]}}},
        "status": {"active": 10, "startTime": "2026-01-01T00:00:00Z"},
    }
    before = {**job, "spec": {**job["spec"], "suspend": False}}
    return _review(number, {"group": "batch", "version": "v1", "kind": "Job"}, namespace, job, "UPDATE", before)


def _review(
    number: int, kind: dict[str, str], namespace: str, body: object, operation: str, before: object
) -> dict[str, object]:
    request = {
        "uid": f"load-{number}",
        "kind": kind,
        "namespace": namespace,
        "operation": operation,
        "userInfo": {"username": "system:serviceaccount:kueue-system:kueue-controller-manager"},
        "object": body,
        "oldObject": before,
        "dryRun": True,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def ask(url: str, reviews: Sequence[tuple[str, bytes]], calls_a_second: float, seconds: float) -> list[float]:
    """Post the reviews in turn at a steady rate; how long each answer took, from when it was due."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what is measured is not whose it is
    times: list[float] = []
    loop = asyncio.get_running_loop()
    connector = aiohttp.TCPConnector(ssl=context, limit=64)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:

        async def one(path: str, body: bytes, due: float) -> None:
            async with session.post(f"{url}{path}", data=body, headers={"Content-Type": "application/json"}) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            times.append(loop.time() - due)

        began = loop.time()
        for number in range(int(calls_a_second * seconds)):
            due = began + number / calls_a_second
            await asyncio.sleep(max(0.0, due - loop.time()))
            group.create_task(one(*reviews[number % len(reviews)], due))
    return times


async def _counted(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """Calls that the replica has answered so far within the aim, and all of them."""
    async with session.get(f"{url}/metrics") as answer:
        families = {one.name: one.samples for one in text_string_to_metric_families(await answer.text())}
    samples = families["cedana_sched_webhook_duration_seconds"]
    within = (one for one in samples if one.name.endswith("_bucket") and float(one.labels["le"]) == AIM_SECONDS)
    return sum(one.value for one in within), sum(one.value for one in samples if one.name.endswith("_count"))


async def _measure(address: str, port: str, operations_port: str, reviews: Sequence[tuple[str, bytes]]) -> Answers:
    operations = f"http://{address}:{operations_port}"
    async with aiohttp.ClientSession() as session:
        within_before, all_before = await _counted(session, operations)
        times = await ask(f"https://{address}:{port}", reviews, CALLS_A_SECOND, SECONDS)
        within, total = await _counted(session, operations)
    return Answers(times, (within - within_before) / (total - all_before))


async def answers(
    namespace_of_switch: str, address: str, port: int, operations_port: int, namespace: str, segment: str
) -> Answers:
    """Of one replica of the webhooks, by its pod's address, and the segment by which it knows the API server."""
    lines = []
    for number in range(100):
        path, review = ("/mutate/pods", pod_review) if number % 2 else ("/mutate/jobs", job_review)
        lines.append(json.dumps([f"/{segment}{path}", review(namespace, number)]))
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", namespace_of_switch, sys.executable, str(Path(__file__))),
        *(address, str(port), str(operations_port)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate("\n".join(lines).encode())
    if process.returncode != 0:
        raise RuntimeError(f"the load on the webhooks ended with status {process.returncode}")
    return msgspec.json.decode(said, type=Answers)


def _main(address: str, port: str, operations_port: str) -> None:
    reviews = [(path, json.dumps(review).encode()) for path, review in map(json.loads, sys.stdin)]
    found = asyncio.run(_measure(address, port, operations_port, reviews))
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    began = time.monotonic()
    _main(*sys.argv[1:])
    print(f"asked for {time.monotonic() - began:.1f} s", file=sys.stderr)
