"""A cluster in memory, and the command line that reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cedana_sched.cli.kubectl.cluster_options import ClusterOptions
from cedana_sched.cli.kubectl.main import app
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import RefusedByServerError
from cedana_sched.kube.resources import CHECKPOINTS, EVENTS, PODS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi

Kubectl = Callable[..., Result]


def put_pod(api: FakeApi, name: str = "md-0", namespace: str = "bio", **more: Any) -> None:
    """A protected pod."""
    annotations = {names.ID: "md", names.INDEX: "0", **more.pop("annotations", {})}
    metadata = {"name": name, "namespace": namespace, "labels": {names.PROTECTED: "true"}, "annotations": annotations}
    status = {"phase": "Running", "startTime": "2026-05-01T11:00:00Z", **more}
    api.put(PODS, {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


def put_checkpoint(api: FakeApi, name: str, step: str, generation: int | None = None, **more: Any) -> None:
    spec = {
        "uid": name, "identity": {"id": "md"}, "podRef": {"name": "md-0", "uid": "u", "nodeName": "n1"},
        "adapter": "kueue", "reason": "InCohortReclamation", "holdUid": "h",
    }  # fmt: skip
    status: dict[str, Any] = {"step": step, "phase": "Ready" if step == "Ready" else "Running", **more}
    if generation is not None:
        status |= {"snapshot": {"id": "md", "generation": generation}, "commitTime": "2026-05-01T11:30:00.000000Z"}
    api.put(CHECKPOINTS, {"metadata": {"name": name, "namespace": "bio"}, "spec": spec, "status": status})


def put_restore(api: FakeApi, name: str, step: str, **more: Any) -> None:
    spec = {"uid": name, "identity": {"id": "md"}, "podRef": {"name": "md-0", "uid": "u", "nodeName": "n1"}}
    api.put(RESTORES, {"metadata": {"name": name, "namespace": "bio"}, "spec": spec, "status": {"step": step, **more}})


def put_hold(api: FakeApi, name: str, step: str, *verdicts: str) -> None:
    held = {"apiVersion": "batch/v1", "kind": "Job", "name": "md", "uid": "j"}
    spec = {
        "uid": name,
        "adapter": "kueue",
        "heldObjectRef": held,
        "reason": "InCohortReclamation",
        "preemptor": "ml/train",
    }
    status = {"step": step, "victims": [{"podUid": str(n), "verdict": one} for n, one in enumerate(verdicts)]}
    api.put(PREEMPTION_HOLDS, {"metadata": {"name": name, "namespace": "bio"}, "spec": spec, "status": status})


def put_event(api: FakeApi, pod: str, reason: str, message: str, **more: Any) -> None:
    uid = api.stored(PODS, pod, "bio")["metadata"]["uid"]
    metadata = {"name": reason.lower(), "namespace": "bio"}
    body = {"metadata": metadata, "involvedObject": {"uid": uid, "name": pod}, "type": "Warning"}
    api.put(EVENTS, {**body, "reason": reason, "message": message, "count": 2, "lastTimestamp": None, **more})


async def refuse_watch(*_: Any, **__: Any) -> AsyncGenerator[bytes, None]:
    """In place of `Api.stream`: who may list may not watch."""
    yield await _forbid()


async def _forbid() -> bytes:
    raise RefusedByServerError("forbidden", status=403, reason="Forbidden")


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def kubectl(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """Run `kubectl cedana` against this cluster; its context's namespace is `bio`."""

    @asynccontextmanager
    async def open_cluster(_: ClusterOptions) -> AsyncIterator[Api]:
        yield api

    monkeypatch.setattr(ClusterOptions, "open_cluster", open_cluster)
    monkeypatch.setattr(ClusterOptions, "_namespace_of_context", lambda _: "bio")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return run
