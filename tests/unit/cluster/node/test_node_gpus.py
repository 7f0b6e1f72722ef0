"""The node's GPUs are published once they are known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.node import gpu_annotation
from cedana_sched.cluster.node.facts import NodeFacts
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.gpus import Gpu, Gpus
from cedana_sched.model.objects.names import NODE_GPUS
from cedana_sched.snapshot.gpus import HANGS as STUCK

NONE = Gpus()
HANGS = Gpus(problem="the driver did not answer within 5 s")
FOUND = Gpus((Gpu("NVIDIA A100", "GPU-1", 40 << 30),), driver="580.1")
ROOT = Path("/proc/1/root")


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Any:
    def these(*found: Gpus) -> None:
        looks = iter(found)

        async def find(root: Path) -> Gpus:
            assert root == ROOT
            return next(looks)

        monkeypatch.setattr(gpu_annotation, "find_gpus", find)
        monkeypatch.setattr(gpu_annotation, "LOOK_AGAIN_SECONDS", 0)

    return these


async def test_a_driver_that_is_loaded_later(finds: Any) -> None:
    finds(NONE, NONE, HANGS, HANGS, FOUND)
    published: list[Gpus] = []

    async def publish(found: Gpus) -> None:
        published.append(found)

    await asyncio.wait_for(gpu_annotation.publish_gpus(publish, ROOT), 60)
    assert published == [NONE, HANGS, FOUND]


async def test_a_driver_that_hangs_in_the_kernel_is_not_queried_again(finds: Any) -> None:
    stuck = Gpus(problem=STUCK)
    finds(stuck)
    published: list[Gpus] = []

    async def publish(found: Gpus) -> None:
        published.append(found)

    await asyncio.wait_for(gpu_annotation.publish_gpus(publish, ROOT), 60)
    assert published == [stuck]


async def test_an_api_server_that_does_not_answer_yet(finds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(FOUND)
    tries = []

    async def publish(found: Gpus) -> None:
        tries.append(found)
        if len(tries) == 1:
            raise ApiUnavailableError("no answer")

    await asyncio.wait_for(gpu_annotation.publish_gpus(publish, ROOT), 60)
    assert tries == [FOUND, FOUND]


@pytest.mark.parametrize(("found", "value"), [(FOUND, FOUND), (HANGS, HANGS), (NONE, None)])
async def test_the_annotation(found: Gpus, value: Gpus | None) -> None:
    patches = []

    class Server:
        async def patch(self, *patch: Any) -> None:
            patches.append(patch[-1])

    await NodeFacts(cast("Api", Server()), "node-1").publish_gpus(found)
    [patch] = patches
    annotations = patch["metadata"]["annotations"]
    text = annotations.pop(NODE_GPUS)
    assert annotations == {}
    assert (None if text is None else msgspec.json.decode(text, type=Gpus)) == value
