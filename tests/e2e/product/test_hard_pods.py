"""Pods that hold more than one process: all that a pod may have continues, on another node and at another address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.records import CheckpointStep
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, wait_for_all
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.images.catalog import find_images
from tests.cluster.patience import patient
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.counting import ALL, COUNTS, begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = pytest.mark.any_shape

PREPARE = """
with open('/data/prepared', 'a') as file:
    print('prepared', file=file)
print('prepared', flush=True)
"""

# It ignores SIGTERM, as first processes do by themselves: it must not have the longer grace that a hold needs.
SIDE = """
import itertools, socket, threading, time
def answer():
    listener = socket.create_server(('127.0.0.1', 9000))
    while True:
        connection, _ = listener.accept()
        for line in connection.makefile('rb'):
            connection.sendall(line)
threading.Thread(target=answer, daemon=True).start()
with open('/data/side', 'a', buffering=1) as file:
    for number in itertools.count():
        print(number, file=file)
        print(number, flush=True)
        time.sleep(0.05)
"""

MAIN = """
import http.server, itertools, json, os, socket, threading, time
started = {'hostname': socket.gethostname(), 'environment': dict(os.environ), 'user': os.getuid()}
number = 0
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        bound = [one.getsockname()[0] for one in (server.socket, datagrams)]
        content = {'started': started, 'hostname': socket.gethostname(), 'number': number, 'bound': bound}
        self.wfile.write(json.dumps(content).encode())
    def log_message(self, *_):
        pass
own = socket.gethostbyname(socket.gethostname())
server = http.server.ThreadingHTTPServer((own, 8080), Page)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(('192.0.2.1', 53))
server.handle_error = lambda *_: None  # a probe of the node that it left
threading.Thread(target=server.serve_forever, daemon=True).start()
if written := os.environ.get('WRITES'):
    with open(written, 'w') as file:
        file.write('mine')
while True:
    try:
        side = socket.create_connection(('127.0.0.1', 9000))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
answers = side.makefile('rb')
with open('/data/main', 'a', buffering=1) as file:
    for number in itertools.count():
        side.sendall(b'%d\\n' % number)
        echoed = int(answers.readline())
        print(echoed, file=file)
        print(echoed, flush=True)
        if os.path.exists('/data/stop'):
            break
        time.sleep(0.05)
assert not written or open(written).read() == 'mine'
"""

WRITTEN = "/var/tmp/mine"
"""A file in the root filesystem, where everybody may write."""

AS_ROOT: Mapping[str, Any] = MappingProxyType({"runAsUser": 0})
HARDENED: Mapping[str, Any] = MappingProxyType(
    {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
)
READ_ONLY: Mapping[str, Any] = MappingProxyType({**HARDENED, "readOnlyRootFilesystem": True})


def hard_job(image: str, security: Mapping[str, Any]) -> Object:
    """A Job of a pod with an init container, a native sidecar, an emptyDir that both write, probes and a port."""
    common = {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": dict(security),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    prepare = {**common, "name": "prepare", "command": ["python3", "-c", PREPARE]}
    side = {**common, "name": "side", "command": ["python3", "-c", SIDE], "restartPolicy": "Always"}
    body = indexed_job(
        "hard", "bio", image, "python3", "-c", MAIN, cpu="600m", initContainers=[prepare, side],
        volumes=[{"name": "data", "emptyDir": {}}],
    )  # fmt: skip
    (main,) = body["spec"]["template"]["spec"]["containers"]
    main |= {key: value for key, value in common.items() if key != "image"}
    main["ports"] = [{"containerPort": 8080}]
    main["readinessProbe"] = {"httpGet": {"port": 8080}, "periodSeconds": 1}
    if not security.get("readOnlyRootFilesystem"):
        main["env"] = [{"name": "WRITES", "value": WRITTEN}]
    return body


def service() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "hard"},
        "spec": {"selector": {"job-name": "hard"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


async def page(namespace: Namespace, pod: str) -> dict[str, Any]:
    """What the Service answers to a process of that pod."""
    host = f"hard.{namespace.name}.svc.cluster.local"
    ask = f"import urllib.request; print(urllib.request.urlopen('http://{host}', timeout=20).read().decode())"
    answer: dict[str, Any] = json.loads(await namespace.exec(pod, "python3", "-c", ask))
    return answer


async def running(namespace: Namespace) -> Object:
    """The Job's pod, once it is ready; never one that is on its way out."""

    def ready(pods: list[Object]) -> list[Object]:
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and has_condition("Ready")(pod)]

    pods = await wait_for_all(
        namespace.api,
        "v1",
        "Pod",
        lambda pods: bool(ready(pods)),
        namespace=namespace.name,
        selector="job-name=hard",
        within=120,
    )
    (pod,) = ready(pods)
    return pod


@pytest.mark.nodes(2)
@pytest.mark.parametrize(
    "security",
    [
        pytest.param(AS_ROOT, id="root", marks=pytest.mark.exhaustive),
        pytest.param(HARDENED, id="hardened", marks=pytest.mark.exhaustive),
        pytest.param(READ_ONLY, id="ro"),
    ],
)
async def test_all_of_a_pod_continues(
    security: Mapping[str, Any], namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    async with (
        groups(namespace),
        Following.of(namespace, "hard") as main,
        Following.of(namespace, "hard", container="side") as side,
        Following.of(namespace, "hard", container="prepare") as prepare,
    ):
        await namespace.apply(service(), hard_job(toolbox, security))
        await asyncio.wait_for(main.said(0, 40), patient(120))
        first = await running(namespace)
        before = await page(namespace, first["metadata"]["name"])

        left = first["spec"]["nodeName"]
        async with cordoned(namespace, left):
            await reclaim(namespace, toolbox)
            seen = len(main.lines(0))
            await asyncio.wait_for(main.said(0, seen + 20), patient(120))
            second = await running(namespace)
        assert second["spec"]["nodeName"] != left
        name = second["metadata"]["name"]
        assert name != first["metadata"]["name"]
        assert second["status"]["podIP"] != first["status"]["podIP"]
        after = await page(namespace, name)
        if "readOnlyRootFilesystem" not in security:
            assert await namespace.exec(name, "cat", WRITTEN) == "mine"
        assert (await namespace.exec(name, "hostname")).strip() == before["hostname"]
        await namespace.exec(name, "touch", "/data/stop")
        await completed(namespace, "hard")
        await asyncio.wait_for(asyncio.gather(main.read(), side.read(), prepare.read()), patient(60))

    assert before["bound"] == [first["status"]["podIP"]] * 2
    assert after["bound"] == [second["status"]["podIP"]] * 2
    assert before["started"] == after["started"]
    assert after["hostname"] == before["hostname"]
    assert after["number"] > before["number"]
    assert prepare.lines(0) == ["prepared"]
    for one in (main, side):
        assert one.lines(0) == [str(number) for number in range(len(one.lines(0)))]
    assert [status["restartCount"] for status in second["status"]["containerStatuses"]] == [0]


@pytest.mark.exhaustive  # with Volcano it is tried each time
async def test_job_comes_back_as_often_as_it_is_preempted(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    count = f"import time\nfor number in range(400): print(number, flush=True); time.sleep({patient(0.05)})"
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, "python3", "-c", count, cpu="600m"))
        for generation in range(1, 4):
            await asyncio.wait_for(bio.said(0, len(bio.lines(0)) + 20), patient(120))
            await reclaim(namespace, toolbox, f"train-{generation}")
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        assert bio.lines(0) == [str(number) for number in range(400)]
        assert len(bio.nodes[0]) == 4


WEAKER: Mapping[str, tuple[Mapping[str, Any], str]] = MappingProxyType(
    {
        "user": ({}, "user: 0 in the snapshot, 1000 in the new container"),
        "capability": ({**AS_ROOT, "capabilities": {"drop": ["CHOWN"]}}, "capabilities: CAP_CHOWN in the snapshot"),
        "nnp": ({**AS_ROOT, "allowPrivilegeEscalation": False}, "no new privileges: no in the snapshot"),
        "seccomp": ({**AS_ROOT, "seccompProfile": {"type": "RuntimeDefault"}}, "seccomp filter: none in the snapshot"),
        "ro": ({**AS_ROOT, "readOnlyRootFilesystem": True}, "read-only root: no in the snapshot"),
        "image": (AS_ROOT, "in the new container"),
    }
)
"""Containers that allow less than one of root, and what is said of them. No machine of these tests has an LSM."""


@pytest.mark.parametrize(
    "less", [pytest.param(less, marks=() if less == "user" else pytest.mark.exhaustive) for less in WEAKER]
)
async def test_snapshot_of_root_does_not_continue_in_a_pod_that_allows_less(
    less: str, namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    security, said = WEAKER[less]
    image = find_images()["agent"].tag if less == "image" else toolbox
    async with groups(namespace), Following.of(namespace, "strong") as strong, Following.of(namespace, "weak") as weak:
        await namespace.apply(_secured("strong", toolbox, AS_ROOT, counts=None))
        await begun(strong, 0)
        await namespace.apply(indexed_job("train", "ml", toolbox, "sleep", "3600", pods=2))
        await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=1)
        await namespace.delete("batch/v1", "Job", "strong")
        await namespace.delete("batch/v1", "Job", "train")

        await namespace.apply(_secured("weak", image, security, counts=COUNTS))
        await completed(namespace, "weak")
        await asyncio.wait_for(weak.read(), patient(60))

    assert weak.lines(0) == ALL, "it began anew"
    assert said in "".join(await wait_for_messages(namespace, weak.pods[0][-1], "ColdStart", kind="Warning"))


def _secured(name: str, image: str, security: Mapping[str, Any], counts: int | None) -> Object:
    """A Job whose snapshots any other one in the namespace may continue that is made here."""
    body = indexed_job(name, "bio", image, *counting(counts=counts), cpu="600m", env={CHECKPOINT_VARIABLE: "same"})
    (main,) = body["spec"]["template"]["spec"]["containers"]
    main["securityContext"] = dict(security)
    return body
