"""The bucket of the tests is reachable where snapshots come from: in pods, and on their nodes' own network."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.s3_server import PORT, S3Server

pytestmark = pytest.mark.any_shape

_ASK = """\
import http.client, sys, time
until = time.monotonic() + 20  # kube-proxy learns of a ready pod a while after everybody else
while True:
    connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=20)
    try:
        connection.request("GET", "/" + sys.argv[3])
        break
    except ConnectionRefusedError:
        if time.monotonic() > until:
            raise
        time.sleep(0.1)
print(connection.getresponse().status)
"""


@pytest.mark.parametrize("host_network", [False, True], ids=["pod", "node"])
async def test_the_bucket_answers(namespace: Namespace, toolbox: str, s3: S3Server, host_network: bool) -> None:
    host = s3.endpoint.removeprefix("http://").removesuffix(f":{PORT}")
    main = container(toolbox, "python3", "-c", _ASK, host, str(PORT), s3.bucket)
    network: dict[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if host_network else {}
    await namespace.apply(pod("asks", main, **network))
    await namespace.pods(phase="Succeeded")
    assert (await namespace.logs("asks")).strip() == "403", "it is there, and wants a signature"
