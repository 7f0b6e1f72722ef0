"""What policies leave of our parts' rights is what their code writes: neither more, nor less.

That an API server means the same by them is shown in tests/e2e/rights/test_narrowed_rights.py, and beside it.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec

from cedana_sched.cluster.node.foreign_socket_monitor import hold_port_event
from cedana_sched.kube.builtin_kinds import Metadata, Node
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import COMPONENT, EventRecorder, ObjectEvent
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.model.objects import names
from cedana_sched_kubernetes.cordon import CordonedNode, cordon_patch, uncordon_patch
from cedana_sched_kueue.admission_check_decisions import (
    build_active_condition,
    build_pending_status,
    build_ready_status,
    decide_check_answer,
)
from cedana_sched_kueue.admission_check_removal import ClusterQueue, removal_patch
from cedana_sched_kueue.managed_kinds import ManagedKinds
from cedana_sched_kueue.objects import ACTIVE, PENDING, READY, AdmissionCheck, AdmissionCheckSpec
from tests.unit.adapters.kueue.kueue_builders import workload

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "manifests/chart/templates"
HELPERS = (TEMPLATES / "_helpers.tpl").read_text()
PARTS = (TEMPLATES / "narrowed-rights.yaml").read_text()
AGENT = (TEMPLATES / "agent/admission-policy.yaml").read_text()
KUEUE = (TEMPLATES / "kueue/narrowed-rights.yaml").read_text()
NOW = datetime(2026, 11, 21, 15, tzinfo=UTC)


def changed(template: str, now: str, of: str = "") -> set[str]:
    """The fields of `now` that may differ from what they were; `of` is the resource, where there are several."""
    [fields] = re.findall(
        rf'{of}.*?"cedana\.restIsUnchanged" \(list "{now}" "[\w.]+"((?: "\w+")+)\)',
        template,
        re.DOTALL if of else re.NOFLAG,
    )
    return set(re.findall(r"\w+", fields))


def in_a_list(template: str, before: str) -> set[str]:
    """The words of the list after `before`."""
    [words] = re.findall(rf"{re.escape(before)} in \[(.*?)\]", template)
    return set(re.findall(r"'([^']+)'", words))


def test_a_check_of_a_workload_passes_as_the_adapter_writes_it() -> None:
    body = build_ready_status(
        workload(), "save", decide_check_answer(workload(), "hourly", ManagedKinds(), lambda _: False), "well", NOW
    )
    assert set(body) == {"metadata", "status"}
    assert set(body["status"]) == changed(KUEUE, "variables.after", "!= 'workloads'") == {"admissionChecks"}
    [state] = body["status"]["admissionChecks"]
    assert set(state) == {"name"} | changed(KUEUE, "now")
    [update] = state["podSetUpdates"]
    assert set(update) == in_a_list(KUEUE, "update.all(field, field")
    assert set(update["annotations"]) == in_a_list(KUEUE, "key")
    assert state["state"] == READY
    waits = build_pending_status(workload(), "save", "not yet", NOW)
    assert waits is not None
    [still] = waits["status"]["admissionChecks"]
    assert set(still) == set(state)
    assert still["state"] == PENDING
    assert f"was.state == '{PENDING}' && now.state in ['{PENDING}', '{READY}']" in KUEUE


def test_a_check_is_declared_as_the_adapter_declares_it() -> None:
    check = AdmissionCheck(Metadata(name="save"), AdmissionCheckSpec(names.ADMISSION_CHECK_CONTROLLER))
    body = build_active_condition(check, (), NOW)
    assert body is not None
    assert set(body["status"]) == changed(KUEUE, "variables.after", "!= 'admissionchecks'") == {"conditions"}
    assert [one["type"] for one in body["status"]["conditions"]] == [ACTIVE]
    assert f"object.spec.controllerName == '{names.ADMISSION_CHECK_CONTROLLER}'" in KUEUE
    assert f"params.spec.controllerName == '{names.ADMISSION_CHECK_CONTROLLER}'" in KUEUE
    assert f"variables.conditionsAfter.filter(one, one.type != '{ACTIVE}')" in KUEUE


def test_of_a_queue_the_strategy_of_checks_alone_is_written() -> None:
    rules = [{"name": "save", "onFlavors": ["a"]}, {"name": "theirs"}]
    spec = {"admissionChecksStrategy": {"admissionChecks": rules}}
    queue = msgspec.convert({"metadata": {"name": "q"}, "spec": spec}, ClusterQueue)
    for ours, left in (({"save"}, {"admissionChecks": rules[1:]}), ({"save", "theirs"}, None)):
        patch = removal_patch(queue, ours)
        assert patch is not None
        assert patch["spec"] == {"admissionChecksStrategy": left}
        assert set(patch["spec"]) == changed(KUEUE, "object.spec")
        assert set(patch["metadata"]) == {"resourceVersion"}


class Written:
    """An API server that keeps what is written of Events."""

    def __init__(self) -> None:
        self.created: asyncio.Queue[Object] = asyncio.Queue()
        self.patched: asyncio.Queue[Object] = asyncio.Queue()

    async def create(self, _: Any, body: Object, *, into: Any) -> Any:
        self.created.put_nowait(body)
        return into()

    async def patch(self, _: Any, __: str, ___: str, patch: Object) -> None:
        self.patched.put_nowait(patch)


async def test_events_are_told_in_our_name_and_counted() -> None:
    api = Written()
    recorder = EventRecorder(cast("Api", api), COMPONENT)
    running = asyncio.create_task(recorder.run())
    event = ObjectEvent(PODS.reference("p", "lab", "u"), "Saved", "it is saved")
    try:
        async with asyncio.timeout(60):
            recorder.record_event(event)
            created = await api.created.get()
            recorder.record_event(event)
            patch = await api.patched.get()
    finally:
        running.cancel()
    assert (created["source"], created["reportingComponent"]) == ({"component": COMPONENT}, COMPONENT)
    for where in ("object.source.component", "object.reportingComponent"):
        assert f"{where} == '{COMPONENT}'" in HELPERS
    assert set(patch) == changed(HELPERS, "object") - {"apiVersion", "kind", "metadata"}


def test_everybody_tells_events_in_the_name_that_the_policy_knows() -> None:
    for place in ("cedana_sched/cluster", "cedana_sched/adapter/cluster_contract.py", "adapters", "webhooks"):
        files = [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py")
        made = [one for file in files for one in re.findall(r"EventRecorder\((.*)\)", file.read_text())]
        assert all("COMPONENT" in one for one in made), place


def test_an_agent_tells_of_its_node_alone() -> None:
    event = hold_port_event("gpu-3", "somebody else answers")
    assert (event.involved["kind"], event.involved["name"]) == (NODES.kind, "gpu-3")
    told = [
        (file.name, one)
        for place in ("cedana_sched/cluster/node", "cedana_sched/agent", "cedana_sched/component")
        for file in (ROOT / place).rglob("*.py")
        for one in re.findall(r"ObjectEvent\(|\.record_unreadable\(|vents\.record_event\(.*", file.read_text())
    ]
    assert sorted(told) == [
        ("foreign_socket_monitor.py", "ObjectEvent("),
        ("main.py", "vents.record_event(hold_port_event(node, text))"),
    ]
    assert "object.involvedObject.kind == 'Node'" in AGENT


def test_an_agent_writes_marks_of_ours_on_its_node_alone() -> None:
    places = [ROOT / "cedana_sched/cluster/node", ROOT / "cedana_sched/agent"]
    words = {
        word
        for place in places
        for file in place.rglob("*.py")
        for line in re.findall(r'metadata = \{"labels".*|patch\(NODES, .*', file.read_text())
        for word in re.findall(r"\b(?:NODE_|CPU_|UNINSTALL)\w*\b", line)
    } - {"NODES"}
    published = {"NODE_PREPARED", "CPU_FEATURES", "NODE_FACTS", "NODE_GPUS", "NODE_INTERRUPTION"}
    assert words == {*published, "UNINSTALL"}
    assert all(getattr(names, word).startswith(f"{names.GROUP}/") for word in words)
    assert "request.resource.resource != 'nodes' || object.spec == oldObject.spec" in AGENT
    assert """"request.resource.resource != 'nodes' || (%s)" (include "cedana.othersAreUnchanged" .)""" in AGENT


def test_of_a_node_the_adapter_writes_whether_it_is_cordoned() -> None:
    node = Node(Metadata(name="n", uid="u"))
    patch = cordon_patch(node, "notice")
    assert patch is not None
    assert set(patch["spec"]) == changed(PARTS, "object.spec", of=r"resources: \[nodes\]") == {"unschedulable"}
    assert patch["metadata"] == {"annotations": {names.CORDONED: "notice"}}
    metadata = {"name": "n", "uid": "u", "resourceVersion": "1", "annotations": {names.CORDONED: "notice"}}
    undone = uncordon_patch(msgspec.convert({"metadata": metadata, "spec": {"unschedulable": True}}, CordonedNode))
    assert undone is not None
    assert set(undone["spec"]) == {"unschedulable"}
    for when in ("Before", "After"):
        assert f"'{names.CORDONED}' in variables.annotations{when}" in PARTS


def test_of_a_deployment_the_uninstallation_writes_how_many() -> None:
    code = "".join(file.read_text() for file in (ROOT / "cedana_sched").rglob("*.py"))
    [patch] = re.findall(r"patch\(DEPLOYMENTS, (.*)\)$", code, re.MULTILINE)
    assert patch == 'coordinator, namespace, {"spec": {"replicas": 0}}'
    assert changed(PARTS, "object.spec", of=r"resources: \[deployments\]") == {"replicas"}
    assert "object.spec.replicas == 0 &&" in PARTS


def test_every_policy_denies_what_it_cannot_judge() -> None:
    for template in (PARTS, AGENT, KUEUE):
        kinds = len(re.findall(r"^kind: ValidatingAdmissionPolicy(?:Binding)?$", template, re.MULTILINE))
        assert kinds == 2
        assert template.count("failurePolicy: Fail") == template.count("validationActions: [Deny]") == 1
