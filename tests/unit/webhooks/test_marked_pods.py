"""Marks that only we write, on a pod that does not say who it is, are taken away: a pod is never refused."""

from __future__ import annotations

import pytest

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks.pod_admission import admit_pod
from tests.unit.webhooks.admission_builders import configuration, creation, knowledge, pod


def _marked(annotations: dict[str, str]) -> Object:
    body = pod(None, labels={names.PROTECTED: "true", "app": "x"}, annotations=annotations)
    body["spec"]["schedulingGates"] = [{"name": "somebody/else"}, {"name": names.RESTORE_GATE}]
    return body


@pytest.mark.parametrize(
    "annotations",
    [
        {names.ID: "md", names.INDEX: "three"},
        {names.ID: "md", names.INDEX: "9" * 5_000},
        {names.ID: "md", names.INDEX: "-1"},
        {names.ID: "md/..", names.RESTORE_IDENTITY: "md/0"},
        {},
    ],
    ids=["no number", "too long a number", "negative", "no name", "nothing said"],
)
def test_a_pod_that_nobody_can_read_starts_without_our_gate_and_is_warned_of(annotations: dict[str, str]) -> None:
    body = _marked(annotations)
    told = admit_pod(creation(body), knowledge(), configuration())
    assert told.refusal is None
    assert "(give it one by CEDANA_CHECKPOINT" in told.warnings[-1]
    now = apply_json_patch(body, list(told.patch))
    assert now["spec"]["schedulingGates"] == [{"name": "somebody/else"}]
    assert now["metadata"]["labels"] in ({"app": "x"}, {"app": "x", names.PROTECTED: "false"})
    assert names.RESTORE_IDENTITY not in (now["metadata"].get("annotations") or {})


def test_a_pod_that_says_who_it_is_keeps_its_gate() -> None:
    body = _marked({names.ID: "md", names.INDEX: "3"})
    now = apply_json_patch(body, list(admit_pod(creation(body), knowledge(), configuration()).patch))
    assert {"name": names.RESTORE_GATE} in now["spec"]["schedulingGates"]
