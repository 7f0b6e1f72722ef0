"""What cannot be read is named in an Event on it, by every component that may write Events."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CHECKPOINT_STORAGES,
    CHECKPOINTS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    RESTORES,
    Resource,
)
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi
from cedana_sched_kueue.objects import ADMISSION_CHECKS, WORKLOADS
from cedana_sched_volcano.objects import POD_GROUPS, QUEUES

ROOT = Path(__file__).parents[3]
KINDS = [
    PODS, NODES, JOBS, CHECKPOINTS, RESTORES, CHECKPOINT_POLICIES, CHECKPOINT_STORAGES, WORKLOADS, ADMISSION_CHECKS,
    POD_GROUPS, QUEUES,
]  # fmt: skip


def _spoilt(resource: Resource, **labels: str) -> Object:
    namespace = {"namespace": "lab"} if resource.namespaced else {}
    return {"metadata": {"name": "one", "uid": "u", "generation": "three", "labels": labels, **namespace}}


async def _named_by_the_coordinator(resource: Resource, body: Object) -> Object:
    """The first Event on it."""
    server = FakeApi()
    adapters = ("kubernetes", "kueue", "volcano")
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=adapters)
    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        server.put(resource, body)
        await server.until(lambda: any(one["reason"] == "Unreadable" for one in server.all_of(EVENTS)))
    return next(one for one in server.all_of(EVENTS) if one["reason"] == "Unreadable")


@pytest.mark.parametrize("resource", KINDS, ids=lambda one: one.plural)
async def test_by_the_coordinator_and_its_adapters(resource: Resource) -> None:
    event = await _named_by_the_coordinator(resource, _spoilt(resource))
    assert event["involvedObject"] == resource.reference("one", "lab" if resource.namespaced else None, "u")
    assert "generation" in event["message"]
    # an API server refuses an Event on an object without a namespace that is not there
    assert event["metadata"]["namespace"] == ("lab" if resource.namespaced else "default")


async def test_a_policy_whose_field_means_nothing() -> None:
    body = {"metadata": {"name": "one", "uid": "u"}, "spec": {"deadlineSeconds": "soon"}}
    event = await _named_by_the_coordinator(CHECKPOINT_POLICIES, body)
    assert event["involvedObject"] == CHECKPOINT_POLICIES.reference("one", None, "u")
    assert event["message"].startswith("cedana-sched leaves it alone: spec.deadlineSeconds: ")


_TIME = "(write a time that is to come, with its zone, such as 2026-11-28T10:02:00Z, or remove it)"
_PROTECT = "protects no pod (write 'true', or 'false', or remove it)"
MARKS = [
    (NODES, "annotations", names.UNINSTALL, "in 10 minutes", f"is no time of RFC 3339 {_TIME}"),
    (NODES, "annotations", names.UNINSTALL, "2126-11-28T10:02:00", f"has no time zone {_TIME}"),
    (NODES, "annotations", names.UNINSTALL, "9999-12-31T23:59:59-23:59", f"is no time of RFC 3339 {_TIME}"),
    (NODES, "annotations", names.UNINSTALL, "2026-01-01T10:02:00Z", f"is over: the agent stays on the node {_TIME}"),
    (NODES, "annotations", names.NODE_INTERRUPTION, "{}", "is no notice of interruption"),
    (NAMESPACES, "labels", names.PROTECT, "True", _PROTECT),
    (QUEUES, "annotations", names.PROTECT, "yes", _PROTECT),
]
"""What an admin may write by hand, and the API server does not validate."""


@pytest.mark.parametrize(("resource", "field", "key", "value", "problem"), MARKS)
async def test_a_mark_of_an_admin_that_cannot_be_read(
    resource: Resource, field: str, key: str, value: str, problem: str
) -> None:
    event = await _named_by_the_coordinator(resource, {"metadata": {"name": "one", "uid": "u", field: {key: value}}})
    assert event["involvedObject"] == resource.reference("one", None, "u")
    assert event["type"] == "Warning"
    assert f"metadata.{field}[{key}]: {value!r} {problem}" in event["message"]


async def test_a_mark_that_cannot_be_read_is_named_once_for_each_value() -> None:
    server = FakeApi()
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=("kubernetes",))

    def write(value: str, **labels: str) -> None:
        server.put(NAMESPACES, {"metadata": {"name": "one", "uid": "u", "labels": {names.PROTECT: value} | labels}})

    def messages() -> list[tuple[str, int]]:
        return [(one["message"].partition(": ")[2], one["count"]) for one in server.all_of(EVENTS)]

    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        for value, labels in (("yes", {}), ("yes", {"a": "b"}), ("true", {}), ("false", {}), ("no", {})):
            write(value, **labels)
        await server.until(lambda: any("'no'" in message for message, _ in messages()))
    field = f"metadata.labels[{names.PROTECT}]"
    assert sorted(messages()) == [(f"{field}: 'no' {_PROTECT}", 1), (f"{field}: 'yes' {_PROTECT}", 1)]


async def test_no_mark_of_an_excluded_namespace_is_named() -> None:
    server = FakeApi()
    told = CoordinatorConfiguration(
        namespace="cedana-system", adapters=("kubernetes",), excluded_namespaces=frozenset({"monitoring"})
    )
    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        for name in ("monitoring", "one"):
            server.put(NAMESPACES, {"metadata": {"name": name, "uid": name, "labels": {names.PROTECT: "yes"}}})
        await server.until(lambda: len(server.all_of(EVENTS)) > 0)
    assert [one["involvedObject"]["name"] for one in server.all_of(EVENTS)] == ["one"]


WRITERS = ("cedana_sched/cluster/coordinator", "adapters/kueue", "adapters/volcano", "adapters/armada")
"""Whose roles let them write Events about what they read; an agent's are about its own Node."""
OTHERS = {
    "certificate.py": "nobody but us writes the Secret and the ConfigMap of that name",
    "webhooks.py": "a part of the webhooks, which may write no Events",
    "address_secret.py": "nobody but us writes the Secret of that name",
    "cached_pod_states.py": "a part of the extender, which may write no Events",
    "free_resources.py": "a part of the extender, which may write no Events",
}


def test_no_mirror_of_theirs_names_nothing() -> None:
    silent = set[str]()
    for file in (file for place in WRITERS for file in (ROOT / place).rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            is_one = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Informer"
            if is_one and len(call.args) < 2:  # type: ignore[attr-defined]  # it is a Call
                silent.add(file.name)
    assert silent == set(OTHERS)
