"""A write reaches the very object that it is meant for: each one says so, or why any of that name is meant.

What is written because of a review, a watch or an answer is about an object that was seen. By its name alone the write
would reach whatever has that name by now. A resource version is never given twice, so it stands for the uid as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from tests.unit.kube.moody_api_server import MoodyApiServer

ROOT = Path(__file__).parents[3]
ROOMS = (
    "cedana_sched/adapter",
    "cedana_sched/cluster",
    "cedana_sched/kube",
    "cedana_sched/component",
    "webhooks",
    "adapters",
)
WRITES = frozenset({"apply", "delete", "patch", "update"})
PRECONDITIONS = ('"resourceVersion"', '"uid":', "uid=", "same_version_tests(", "same_object_test(")
"""How the code says that one is given."""

NOTES, REDO_LOG = "cedana_sched/cluster/coordinator/adapter_notes.py", "cedana_sched/cluster/coordinator/redo_log.py"
KUEUE, LEASE = "adapters/kueue/cedana_sched_kueue", "cedana_sched/kube/lease.py"
CHECKS, CHECK_STATES = f"{KUEUE}/admission_check_controller.py", f"{KUEUE}/admission_check_decisions.py"
WEBHOOKS = "webhooks/cedana_sched_webhooks"
MADE_BY = {
    **{
        f"{CHECKS} {name}": f"{CHECK_STATES} _build_workload_status"
        for name in ("_apply_ready_status", "_write_pending_status")
    },
    "cedana_sched/cluster/node/checkpointable_condition.py publish": (
        "cedana_sched/cluster/node/checkpointable_condition.py _patch_of"
    ),
    f"{CHECKS} _write_check_condition": f"{CHECK_STATES} build_active_condition",
    f"{KUEUE}/admission_check_removal.py withdraw_checks": f"{KUEUE}/admission_check_removal.py removal_patch",
    **{f"{NOTES} {name}": f"{NOTES} _config_map_body" for name in ("read", "write")},
    **{
        f"{REDO_LOG} {name}": f"{REDO_LOG} _config_map_body"
        for name in ("_resolve_uncertain_writes", "_replace", "take_over")
    },
    **{f"{LEASE} {name}": f"{LEASE} _body" for name in ("_renew", "_try_to_acquire")},
    f"{WEBHOOKS}/own_certificates.py _patch_configurations": f"{WEBHOOKS}/registrations.py patch",
}
"""Writes whose body another function makes, and which."""

BY_NAME = {
    "cedana_sched/cluster/coordinator/garbage_collection_scheduler.py _assign_turns": "our ConfigMap: any is as good",
    "cedana_sched/cluster/coordinator/projection.py _restore_labels": "a record's object, under the record's own name",
    "cedana_sched/cluster/coordinator/projection.py _write_object": "likewise; deleted, it is made again",
    "cedana_sched/cluster/coordinator/projection.py _write_one": "likewise",
    "cedana_sched/cluster/node/facts.py publish": "the node that the agent is on",
    "cedana_sched/cluster/node/facts.py publish_gpus": "likewise",
    "cedana_sched/cluster/node/facts.py publish_interruption": "likewise",
    "cedana_sched/cluster/node/facts.py remove_uninstall_mark": "likewise",
    "cedana_sched/cluster/node/facts.py withdraw": "likewise",
    "cedana_sched/cluster/node/restoring/incarnation_reports.py _write_replaced_by": "a Restore, by its record's name",
    "cedana_sched/cluster/uninstall/node_cleanup.py _patch_node": "a node, whichever has the name",
    "cedana_sched/cluster/uninstall/main.py uninstall": "objects of the release that an admin takes away",
    "cedana_sched/kube/events.py _write": "an Event of ours, whose name nobody else would choose",
}
"""Writes without one: why any object of that name is meant."""


def functions() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """By `path name`; of one file no two that write have the same name."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "conformance" in path.parts:  # stages of tests
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{path.relative_to(ROOT)} {node.name}"] = node
    return found


def writes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Calls of an `Api` that change what is there; a creation is of nothing that was seen."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="api") | ast.Attribute(attr="_api"), attr=name)):
                if name in WRITES:
                    yield node


def has_precondition(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    text = ast.unparse(function).replace("'", '"')
    return any(one in text for one in PRECONDITIONS)


def test_every_write_says_which_object_it_means_or_why_not() -> None:
    known = functions()
    writing = {name for name, function in known.items() if list(writes(function))}
    assert len(writing) > 20, "they are not found"
    lacking = set()
    for name in writing:
        made_by = MADE_BY.get(name, name)
        if not has_precondition(known[made_by]):
            lacking.add(name)
    assert lacking - BY_NAME.keys() == set(), "give a uid or a resource version, or say why not"
    assert BY_NAME.keys() - lacking == set(), "these have one, or write nothing: say nothing of them"
    assert MADE_BY.keys() <= writing


EMPTY = Metadata(name="victim-0", namespace="tenant-b")
"""As a review says it that no API server has written."""


async def test_a_pod_without_uid_and_version_is_not_marked() -> None:
    server = MoodyApiServer()
    server.put(PODS, {"metadata": {"name": "victim-0", "namespace": "tenant-b", "uid": "u", "resourceVersion": "1"}})
    async with server.serving() as api:
        marker = EvictionMarker(api, SERVER_TIME.now)
        for seen in (
            EMPTY,
            Metadata("victim-0", "tenant-b", uid="u"),
            Metadata("victim-0", "tenant-b", resource_version="1"),
        ):
            marker.enqueue_mark(seen, "system:serviceaccount:volcano-system:volcano-scheduler")
        assert marker._waiting.empty()


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_an_empty_precondition_is_none_and_refused(field: str) -> None:
    server = MoodyApiServer()
    server.put(PODS, {"metadata": {"name": "victim-0", "namespace": "tenant-b", "uid": "u"}})
    async with server.serving() as api:
        body = {"metadata": {field: "", "annotations": {"a": "b"}}}
        with pytest.raises(ConflictError):
            await api.patch(PODS, "victim-0", "tenant-b", body)
        named = {**body["metadata"], "name": "victim-0", "namespace": "tenant-b"}
        with pytest.raises(ConflictError):
            await api.apply(PODS, {"metadata": named})
        with pytest.raises(ConflictError):
            await api.delete(PODS, "victim-0", "tenant-b", uid="")
        assert not await patch_same(api, PODS, EMPTY, {"metadata": {"annotations": {"a": "b"}}})
        found = await api.get(PODS, "victim-0", "tenant-b", into=PartialObject)
    assert found.metadata.annotations == {}
