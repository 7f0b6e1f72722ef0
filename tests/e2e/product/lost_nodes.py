"""A node that loses its power, and what docs/operations.md says to do then."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.images.catalog import REPOSITORY
from tests.e2e.product import s3_server

_SECTION: Final = re.compile(r"^### A node that is gone$(.*?)^#", re.DOTALL | re.MULTILINE)
_COMMAND: Final = re.compile(r"^ +kubectl (.*NODE.*)$", re.MULTILINE)


@asynccontextmanager
async def switched_off(namespace: Namespace, name: str) -> AsyncIterator[None]:
    """The node loses its power, and the control plane has noticed; at the end it is on again."""
    node = namespace.cluster.nodes[name]
    node.kill()
    try:
        await wait_for(namespace.api, "v1", "Node", name, has_condition("Ready", "Unknown"), within=120)
        yield
    finally:
        await namespace.cluster.start_node(node)


@asynccontextmanager
async def out_of_service(namespace: Namespace, name: str) -> AsyncIterator[None]:
    """An admin types what the page says, and what it says to type at the end."""
    (section,) = _SECTION.findall((REPOSITORY / "docs/operations.md").read_text())
    declare, withdraw = (command.replace("NODE", name).split() for command in _COMMAND.findall(section))
    await namespace.kubectl(*declare)
    try:
        yield
    finally:
        await namespace.kubectl(*withdraw)


async def node_of_store(namespace: Namespace) -> str:
    """The node without which no snapshot can be read."""
    (server,) = await namespace.api.objects("v1", "Pod", s3_server.NAMESPACE)
    return str(server["spec"]["nodeName"])
