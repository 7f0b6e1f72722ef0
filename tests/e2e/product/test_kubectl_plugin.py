"""`kubectl cedana`, as kubectl runs it, shows of a real cluster what is so."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.objects.names import API_VERSION, ID, POLICY
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.policies import OFTEN, own_policy

pytestmark = [pytest.mark.any_shape]


async def _kubectl_cedana(namespace: Namespace, *arguments: str, token: str | None = None) -> tuple[int, str, str]:
    """Its exit status, stdout and stderr; with a token as its ServiceAccount, else as the admin."""
    cluster = namespace.cluster
    kubectl = cluster.binaries.program("kubectl")
    path = f"{Path(sys.executable).parent}:{kubectl.parent}:{os.environ['PATH']}"
    command = [kubectl, "cedana", *arguments, f"--kubeconfig={cluster.kubeconfig}"]
    if token is not None:
        command = [kubectl, "cedana", *arguments, f"--kubeconfig={await _kubeconfig_of(namespace, token)}"]
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": path},
    )
    async with asyncio.timeout(patient(60)):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def _kubeconfig_of(namespace: Namespace, token: str) -> Path:
    """The cluster's kubeconfig with this token in place of the admin's certificate."""
    content: Any = json.loads(await namespace.kubectl("config", "view", "--raw", "--flatten", "--output=json"))
    content["users"] = [{"name": one["name"], "user": {"token": token}} for one in content["users"]]
    path = namespace.cluster.kubeconfig.with_name(f"kubeconfig-of-{namespace.name}")
    path.write_text(json.dumps(content))
    return path


def _job(image: str, policy: str) -> Object:
    """One pod that is saved every few seconds."""
    body = job("md", container(image, *counting(counts=None)), fields={"completionMode": "Indexed", "completions": 1})
    body["spec"]["template"]["metadata"]["annotations"] = {ID: "md", POLICY: policy}
    return body


async def _data(namespace: Namespace, *arguments: str) -> Any:
    status, out, err = await _kubectl_cedana(namespace, *arguments, f"--namespace={namespace.name}", "--output=json")
    assert status == 0, err
    return json.loads(out)


async def test_plugin_shows_a_protected_pod_its_snapshots_and_what_a_right_is_missing_for(
    namespace: Namespace, toolbox: str, installed: Product
) -> None:
    del installed
    async with own_policy(namespace, **OFTEN) as policy, Following.of(namespace, "md") as md:
        await namespace.apply(_job(toolbox, policy))
        await asyncio.wait_for(begun(md, 0), patient(120))

        def is_saved(found: list[Object]) -> bool:
            return any(one.get("status", {}).get("phase") == "Ready" for one in found)

        await wait_for_all(namespace.api, API_VERSION, "Checkpoint", is_saved, namespace=namespace.name)
        (pod,) = await _data(namespace, "list")
        assert (pod["name"], pod["id"], pod["index"], pod["phase"]) == (md.pods[0][0], "md", 0, "Running")
        assert pod["snapshot"].startswith("md/0@")
        assert pod["read_bytes"] > 0

        details = await _data(namespace, "inspect", pod["name"])
        assert details["pod"]["name"] == pod["name"]
        assert {one["kind"] for one in details["operations"]} == {"Checkpoint"}
        assert all(one["done_bytes"] > 0 for one in details["operations"] if one["step"] == "Ready")
        assert await _data(namespace, "hold") == []
        assert {one["kind"] for one in await _data(namespace, "status")} <= {"Checkpoint"}
        (found,) = await _data(namespace, "policy", policy)
        assert found["spec"]["intervalSeconds"] == OFTEN["intervalSeconds"]

        status, _, err = await _kubectl_cedana(namespace, "inspect", "gone", f"--namespace={namespace.name}")
        assert (status, f"is no pod of namespace {namespace.name}" in err) == (3, True), err
        await namespace.kubectl("create", "serviceaccount", "guest")
        token = (await namespace.kubectl("create", "token", "guest")).strip()
        status, _, err = await _kubectl_cedana(namespace, "list", f"--namespace={namespace.name}", token=token)
        assert status == 4, err
        assert f"needs list on checkpoints.sched.cedana.ai in namespace {namespace.name}" in err
        await namespace.delete("batch/v1", "Job", "md")


async def test_plugin_follows_the_operations_of_a_namespace(
    namespace: Namespace, toolbox: str, installed: Product
) -> None:
    del installed
    async with own_policy(namespace, **OFTEN) as policy, Following.of(namespace, "md") as md:
        cluster = namespace.cluster
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("kubectl-cedana"), "status", "--watch", "--output=json",
            f"--namespace={namespace.name}", f"--kubeconfig={cluster.kubeconfig}",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        steps = list[str]()
        try:
            await namespace.apply(_job(toolbox, policy))
            await asyncio.wait_for(begun(md, 0), patient(120))
            async with asyncio.timeout(patient(120)):
                while "Ready" not in steps:
                    one = json.loads(await process.stdout.readline())
                    assert (one["kind"], one["namespace"]) == ("Checkpoint", namespace.name)
                    steps.append(one["step"])
        finally:
            process.terminate()
            await process.wait()
        assert steps[0] != "Ready"
        await namespace.delete("batch/v1", "Job", "md")
