"""The key that seals snapshots is made once, and never in another one's place."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cedana_sched.cluster.coordinator.sealing_secret_creation import KEYS, ensure_sealing_secret
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import RefusedByServerError
from cedana_sched.kube.resources import Resource
from cedana_sched.store.sealing.key_file import KeyFile
from cedana_sched.testing import FakeApi
from tests.pauses import shorten_pauses

T = TypeVar("T")


class CreatingOnly(FakeApi):
    """As the role has it; refuses as often as it is told."""

    def __init__(self, refusals: int = 0) -> None:
        super().__init__()
        self.refusals = refusals

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        if self.refusals:
            self.refusals -= 1
            raise RefusedByServerError("no Secrets here", status=403)
        return await super().create(resource, body, into=into)

    async def get(self, *_: Any, **__: Any) -> Any:
        raise RefusedByServerError("not yours to read", status=403)

    def made(self) -> Object:
        (body,) = self.objects.values()
        return body


async def make(server: CreatingOnly) -> None:
    async with asyncio.timeout(60):
        await ensure_sealing_secret(server, "cedana-system", "cedana-sched-sealing")


async def test_it_is_a_file_of_keys_that_nobody_prunes(tmp_path: Path) -> None:
    server = CreatingOnly()
    await make(server)
    body = server.made()
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_bytes(base64.b64decode(body["data"][KEYS]))
    assert KeyFile(keys).newest_key_id()
    assert body["type"] == "Opaque"
    assert (body["metadata"]["name"], body["metadata"]["namespace"]) == ("cedana-sched-sealing", "cedana-system")
    assert "app.kubernetes.io/instance" not in body["metadata"]["labels"], "GitOps tools remove what shows it"


async def test_one_that_is_there_stays() -> None:
    server = CreatingOnly()
    await make(server)
    first = dict(server.made()["data"])
    await make(server)
    assert server.made()["data"] == first


async def test_it_is_made_as_soon_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    server = CreatingOnly(refusals=3)
    await make(server)
    assert server.made()["data"]
