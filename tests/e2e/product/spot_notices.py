"""A provider that takes nodes away: its metadata server on a node, and its notice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cedana_sched.model.objects.names import CORDONED, NODE_INTERRUPTION
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for
from tests.cluster.fixtures.namespace import Namespace, container, pod

PORT: Final = 10399
NOTICE: Final = "/tmp/notice"
METADATA_SERVER: Final = f"""
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        self.answer(200, b"the-token") if self.path == "/latest/api/token" else self.answer(404)

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "the-token":
            self.answer(401)
        elif self.path == "/latest/meta-data/spot/instance-action" and os.path.exists({NOTICE!r}):
            self.answer(200, open({NOTICE!r}, "rb").read())
        else:
            self.answer(404)

http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""
"""IMDSv2 as far as notices of a spot instance go; a file has the notice."""
INTERRUPTIONS: Final[dict[str, Any]] = {"provider": "aws", "metadataUrl": f"http://127.0.0.1:{PORT}"}
"""With these values agents call that server."""


def _metadata_server(image: str, node: str) -> Object:
    """On the node's own network, where its agent calls it."""
    main = container(image, "python3", "-c", METADATA_SERVER)
    return pod(
        "metadata", main, hostNetwork=True, nodeName=node, restartPolicy="Always", tolerations=[{"operator": "Exists"}]
    )


@asynccontextmanager
async def announced(namespace: Namespace, image: str, node: str, seconds: float) -> AsyncIterator[datetime]:
    """The provider takes the node away, and says when; at the end it has changed its mind."""
    await namespace.apply(_metadata_server(image, node))
    await namespace.ready("metadata")
    ends_at = (datetime.now(tz=UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
    notice = json.dumps({"action": "terminate", "time": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}"})
    await namespace.exec("metadata", "sh", "-c", f"echo '{notice}' > {NOTICE}.new && mv {NOTICE}.new {NOTICE}")
    try:
        yield ends_at
    finally:
        await namespace.exec("metadata", "rm", "-f", NOTICE)
        await wait_for(namespace.api, "v1", "Node", node, _is_left_alone, within=60)


def _is_left_alone(node: Object) -> bool:
    annotations = node["metadata"].get("annotations", {})
    is_cordoned = node["spec"].get("unschedulable", False)
    return NODE_INTERRUPTION not in annotations and CORDONED not in annotations and not is_cordoned


def is_cordoned_by_us(node: Object) -> bool:
    """Whether the node takes no pods, by our mark."""
    return CORDONED in node["metadata"].get("annotations", {}) and node["spec"].get("unschedulable", False)
