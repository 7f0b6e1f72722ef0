"""What any cluster does for workloads: Jobs, Services, DNS, logs, exec, port-forward."""

from __future__ import annotations

import aiohttp
import pytest

from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.namespace import Namespace, container, job, pod

_SERVE = "import http.server as s; s.ThreadingHTTPServer(('', 8000), s.SimpleHTTPRequestHandler).serve_forever()"
_ASK = """
import time, urllib.error, urllib.request
while True:
    try:
        print(urllib.request.urlopen("http://server/etc/hostname", timeout=5).read().decode())
        break
    except urllib.error.URLError as error:
        print(error)  # a node hears of a new Service a moment later
        time.sleep(0.2)
"""


def _server(image: str, **spec: object) -> dict[str, object]:
    ready = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    main = container(image, "python3", "-c", _SERVE, workingDir="/", readinessProbe=ready)
    return pod("server", main, labels={"app": "server"}, **spec)


def _service() -> dict[str, object]:
    ports = [{"port": 80, "targetPort": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": ports},
    }


@pytest.mark.nodes(2)
async def test_job_finds_a_service_on_another_node_by_name(namespace: Namespace, toolbox: str) -> None:
    here, there = list(namespace.cluster.nodes)[:2]
    await namespace.apply(_service(), _server(toolbox, nodeName=here))
    await namespace.ready("server")

    await namespace.apply(job("client", container(toolbox, "python3", "-c", _ASK), nodeName=there))

    await namespace.wait("batch/v1", "Job", "client", has_condition("Complete"))
    client = (await namespace.pods("job=client", phase="Succeeded"))[0]
    assert (await namespace.logs(client["metadata"]["name"])).split()[-1] == "server"


async def test_logs_exec_and_port_forward(namespace: Namespace, toolbox: str) -> None:
    await namespace.apply(_server(toolbox))
    await namespace.ready("server")

    assert await namespace.exec("server", "cat", "/etc/hostname") == "server\n"
    async with (
        namespace.forwarded("pod/server", 8000) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/etc/hostname") as answer,
    ):
        assert await answer.text() == "server\n"
    assert "GET /etc/hostname" in await namespace.logs("server")
