"""People are warned of policies that make a loss of a preemption; on request they are rewritten."""

from __future__ import annotations

from typing import Any

from cedana_sched_volcano.jobs import HARMLESS, answer_for_job
from cedana_sched_webhooks.admission import Answer, Request
from tests.unit.webhooks.admission_builders import patched


def vcjob(*, annotations: dict[str, str] | None = None, asks: bool = True, **spec: Any) -> dict[str, Any]:
    variables = [{"name": "CEDANA_CHECKPOINT", "value": "md"}] if asks else []
    template = {"spec": {"containers": [{"name": "main", "env": variables}]}}
    tasks = [{"name": "sim", "replicas": 4, "template": template}]
    return {"metadata": {"annotations": annotations or {}}, "spec": {"minAvailable": 1, "tasks": tasks, **spec}}


async def answered(body: dict[str, Any]) -> Answer:
    return await answer_for_job(Request(uid="1", namespace="lab", object=body))


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
    after = patched(body, answer.patch)
    assert (await answered(after)).decision == "harmless"
    assert after["spec"]["policies"][-1] == DEADLY[0], "real failures end it as before"


async def test_who_asks_for_no_protection_hears_nothing() -> None:
    assert await answered(vcjob(policies=DEADLY, asks=False)) == Answer("not-ours")


async def test_a_harmless_job_is_left_as_it_is() -> None:
    assert await answered(vcjob()) == Answer("harmless")
