"""A whole replica, against an API server in memory: from its start to SIGTERM's end."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from cedana_sched.component.callers import secret_segment_of
from cedana_sched.kube.resources import CHECKPOINTS, MUTATING_WEBHOOKS, NODES, PREEMPTION_HOLDS, SECRETS, Resource
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.main import serve
from cedana_sched_webhooks.registrations import PODS
from tests.unit.webhooks.admission_builders import KUEUE, configuration, pod, suspension

HOST = "webhooks.ours.svc"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def here() -> Configuration:
    return configuration(
        namespace="ours",
        service="webhooks",
        port=free_port(),
        operations_port=free_port(),
        drain_seconds=0.5,
        adapters=("kueue",),
    )


async def ready(port: int) -> int:
    """The status of `/readyz`; 0 while nobody listens."""
    try:
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status
    except aiohttp.ClientConnectorError:
        return 0


async def until_ready(port: int) -> None:
    async with asyncio.timeout(60):
        while await ready(port) != 200:  # noqa: ASYNC110  # it is what the kubelet does
            await asyncio.sleep(0.01)


def put(api: FakeApi, resource: Resource, name: str, namespace: str = "", **fields: Any) -> None:
    api.put(resource, {"metadata": {"name": name, "namespace": namespace, **fields.pop("metadata", {})}, **fields})


def called_at(api: FakeApi) -> str:
    """The path of the webhook for pods, as the API server is told; empty before it is."""
    hook = api.stored(MUTATING_WEBHOOKS, "cedana-sched")["webhooks"][0]
    return str(hook["clientConfig"]["service"].get("path", ""))


async def test_from_the_start_to_the_end() -> None:
    api, settings, stop = FakeApi(), here(), asyncio.Event()
    hook = {"name": f"pods.{names.GROUP}", "clientConfig": {"service": {"name": "webhooks"}}}
    put(api, MUTATING_WEBHOOKS, "cedana-sched", webhooks=[hook])
    spec = {
        "identity": {"id": "sim", "index": 0, "container": "main"},
        "podRef": {"name": "p", "uid": "u", "nodeName": "n"},
    }
    status = {"phase": "Ready", "step": "Ready", "deadline": "x", "snapshot": {"id": "sim", "generation": 3}}
    put(api, CHECKPOINTS, "sim-0", "lab", spec=spec, status=status)
    put(api, NODES, "n", metadata={"labels": {names.CPU_FEATURES: "aaa"}, "annotations": {names.NODE_FACTS: facts()}})
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(settings, api, stop))
        await until_ready(settings.operations_port)
        data = api.stored(SECRETS, "cedana-sched-webhooks", "ours")["data"]
        trusting = ssl.create_default_context(cadata=base64.b64decode(data["ca.crt"]).decode())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as client:
            secret = base64.b64decode(data["callers.key"]).decode()

            async def ask(path: str, request: Any) -> Any:
                url = f"https://127.0.0.1:{settings.port}/{secret_segment_of(secret, path)}{path}"
                async with client.post(url, json={"request": request}, server_hostname=HOST) as answer:
                    return (await answer.json())["response"]

            async with asyncio.timeout(60):
                while not (path := called_at(api)):  # noqa: ASYNC110  # all is in memory: each turn is progress
                    await asyncio.sleep(0)
            assert path == f"/{secret_segment_of(secret, PODS)}{PODS}"
            created = await ask("/mutate/pods", {"uid": "1", "namespace": "lab", "object": pod()})
            made = apply_json_patch(pod(), json.loads(base64.b64decode(created["patch"])))
            assert made["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0@3"
            assert "affinity" in made["spec"]
            wanted = suspension()
            held = {"uid": "2", "namespace": "lab", "object": wanted.object, "oldObject": wanted.old_object}
            held["userInfo"] = {"username": KUEUE}
            put(
                api,
                PREEMPTION_HOLDS,
                "hold-1",
                "lab",
                metadata={"creationTimestamp": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
                spec={"uid": "h", "reason": "Preempted", "heldObjectRef": {"uid": "job-uid", "kind": "Job"}},
                status={"step": "Holding", "deadline": "2999-05-01T12:00:00.000000Z"},
            )
            await asyncio.sleep(0)
            refused = await ask("/mutate/jobs", held)
            assert refused["status"]["code"] == 429
            assert refused["status"]["message"].startswith("Held for checkpoint by cedana: Preempted, at most ")
            invalid = await ask(
                "/validate/checkpointpolicies", {"uid": "3", "object": {"spec": {"deadlineSeconds": 0}}}
            )
            assert not invalid["allowed"]
            stop.set()
            await asyncio.sleep(0)
            assert await ready(settings.operations_port) == 503
            assert (await ask("/mutate/pods", {"uid": "4", "namespace": "lab", "object": pod()}))["allowed"]
        await serving
    assert await ready(settings.operations_port) == 0


@pytest.mark.parametrize("apart", [-3600.0, 3600.0])
async def test_certificate_is_valid_by_the_clock_of_who_verifies_it(
    monkeypatch: pytest.MonkeyPatch, apart: float
) -> None:
    """An API server that does not take it calls no webhook, and nothing is held."""
    monkeypatch.setattr(SERVER_TIME, "_epoch", SERVER_TIME._epoch + apart)
    api, settings, stop = FakeApi(), here(), asyncio.Event()
    put(api, MUTATING_WEBHOOKS, "cedana-sched", webhooks=[])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, api, stop))
        await until_ready(settings.operations_port)
        stop.set()
    data = api.stored(SECRETS, "cedana-sched-webhooks", "ours")["data"]
    for name in ("ca.crt", "tls.crt"):
        made = x509.load_pem_x509_certificate(base64.b64decode(data[name]))
        begun_ago = datetime.now(tz=UTC) + timedelta(seconds=apart) - made.not_valid_before_utc
        assert timedelta(0) < begun_ago < timedelta(minutes=30)


def facts() -> str:
    return json.dumps({"architecture": "x86_64", "cpu_features": ["avx2"], "kernel": [6, 12]})


async def test_sigterm_ends_the_process_in_good_order(tmp_path: Path) -> None:
    """It waits for an API server that does not answer, and is not ready; SIGTERM ends it all the same."""
    settings = here()
    file, kubeconfig = tmp_path / "webhooks.json", tmp_path / "kubeconfig"
    file.write_text(settings.model_dump_json(by_alias=True, exclude_none=True))
    server = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [server],
        "contexts": [context],
    }
    kubeconfig.write_text(json.dumps({**document, "users": [{"name": "x", "user": {}}]}))
    program = [sys.executable, "-m", "cedana_sched_webhooks", "--config", str(file), "--kubeconfig", str(kubeconfig)]
    process = await asyncio.create_subprocess_exec(*program, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while b'"listening"' not in (line := await process.stderr.readline()):
            assert line, "it ended before it listened"
        assert await ready(settings.operations_port) == 503
        process.send_signal(signal.SIGTERM)
        rest = await process.stderr.read()
        assert await process.wait() == 0, rest.decode()
    assert b"Traceback" not in rest
