"""A second server of an Armada: encrypted, and it wants to know who asks."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.cluster.armada import components
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.lines import Lines
from tests.cluster.control_plane.certificates import KeyPair
from tests.cluster.machine.services import LOGS

PORT = 50053
_NAME = "secured-server"
_FOLDER = f"/etc/{_NAME}"
_READY_WITHIN = 60


@asynccontextmanager
async def secured_server(armada: Armada, pair: KeyPair, auth: Mapping[str, Any]) -> AsyncIterator[None]:
    """It listens inside the block, beside the other one.

    Args:
        armada: whose queues and jobs it has.
        pair: its certificate and key.
        auth: the section of its configuration that says who may do what.

    Raises:
        ClusterError: it does not come up.
    """
    certificate, key = f"{_FOLDER}/tls.crt", f"{_FOLDER}/tls.key"
    changes = {
        "grpcPort": PORT,
        "httpPort": 8083,
        "metricsPort": 9019,
        "auth": auth,
        "grpc": {"tls": {"enabled": True, "certPath": certificate, "keyPath": key}},
    }
    files = {
        certificate: pair.certificate.read_text(),
        key: pair.key.read_text(),
        **components.files({_NAME: components.server_configuration(changes)}),
    }
    for path, text in files.items():
        await armada.machine.run("sh", "-ec", 'mkdir -p "${1%/*}"; cat >"$1"', "write", path, stdin=text.encode())
    said = Lines(armada.machine.log(_NAME))
    server = shlex.join(components.command("server", told=_NAME))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(armada.machine.run("sh", "-c", f"exec {server} >>{LOGS}/{_NAME}.log 2>&1"))
        await said.wait_for(f"gRPC server listening on {PORT}", within=_READY_WITHIN)
        try:
            yield
        finally:
            running.cancel()
