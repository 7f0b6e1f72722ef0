"""People are warned of policies that make a loss of a preemption; on request they are rewritten."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_volcano.vcjob_admission import HARMLESS, VcjobAdmission
from cedana_sched_webhooks.admission import Answer, Request

QUEUES = {
    "bio": PartialObject(Metadata(name="bio", annotations={names.PROTECT: "true"})),
    "ml": PartialObject(Metadata(name="ml")),
}


def vcjob(
    *, annotations: dict[str, str] | None = None, asks: bool = True, said: str = "md", **spec: Any
) -> dict[str, Any]:
    variables = [{"name": "CEDANA_CHECKPOINT", "value": said}] if asks else []
    template = {"spec": {"containers": [{"name": "main", "env": variables}]}}
    tasks = [{"name": "sim", "replicas": 4, "template": template}]
    return {"metadata": {"annotations": annotations or {}}, "spec": {"minAvailable": 1, "tasks": tasks, **spec}}


async def answered(body: dict[str, Any]) -> Answer:
    return await VcjobAdmission(QUEUES.get).answer(Request(uid="1", namespace="lab", object=body))


DEADLY = [{"event": "PodFailed", "action": "TerminateJob"}]


async def test_a_deadly_policy_is_warned_of_and_let_through() -> None:
    answer = await answered(vcjob(policies=DEADLY))
    assert (answer.decision, answer.patch, answer.refusal) == ("warned", (), None)
    (warning,) = answer.warnings
    assert warning.startswith("cedana: spec.policies[0]: PodFailed: TerminateJob")


async def test_on_request_it_is_rewritten_and_said() -> None:
    body = vcjob(policies=DEADLY, annotations={HARMLESS: "true"})
    answer = await answered(body)
    assert answer.decision == "rewritten"
    assert answer.warnings
    after = apply_json_patch(body, answer.patch)
    assert (await answered(after)).decision == "harmless"
    assert after["spec"]["policies"][-1] == DEADLY[0], "real failures end it as before"


async def test_who_asks_for_no_protection_hears_nothing() -> None:
    assert await answered(vcjob(policies=DEADLY, asks=False)) == Answer("not-ours")


async def test_a_harmless_job_is_left_as_it_is() -> None:
    assert await answered(vcjob()) == Answer("harmless")


@pytest.mark.parametrize(
    ("spec", "decision"),
    [
        ({"queue": "bio"}, "warned"),
        ({"queue": "bio", "schedulerName": "volcano"}, "warned"),
        ({"queue": "bio", "schedulerName": "default-scheduler"}, "not-ours"),
        ({"queue": "ml"}, "not-ours"),
        ({"queue": "gone"}, "not-ours"),
        ({}, "not-ours"),
    ],
)
async def test_who_writes_nothing_is_warned_where_the_queue_protects_all(spec: dict[str, Any], decision: str) -> None:
    assert (await answered(vcjob(policies=DEADLY, asks=False, **spec))).decision == decision


async def test_in_a_protected_queue_policies_are_rewritten_on_request() -> None:
    body = vcjob(policies=DEADLY, asks=False, queue="bio", annotations={HARMLESS: "true"})
    assert (await answered(body)).decision == "rewritten"


async def test_an_empty_id_declines_protection_also_in_a_protected_queue() -> None:
    assert await answered(vcjob(policies=DEADLY, said="", queue="bio")) == Answer("not-ours")


async def test_an_id_that_cannot_be_one_is_told_to_who_creates_the_job() -> None:
    answer = await answered(vcjob(said="no name"))
    assert (answer.decision, answer.patch, answer.refusal) == ("unclear", (), None)
    (warning,) = answer.warnings
    assert warning.startswith("cedana: pods of this task are not protected: ")
