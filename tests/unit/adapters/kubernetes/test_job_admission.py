"""Jobs whose pods are protected do not count an evicted pod as failed."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.client import Object
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched_kubernetes.job_admission import IGNORE_RULE, JobAdmission
from cedana_sched_webhooks.admission import Answer, Request

FAIL_ON_42: Object = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}


def job(*, restarts: str = "Never", value: str | None = "md", **spec: Any) -> Object:
    env = [] if value is None else [{"name": CHECKPOINT_VARIABLE, "value": value}]
    template = {"spec": {"restartPolicy": restarts, "containers": [{"name": "main", "env": env}]}}
    return {"spec": {"template": template, **spec}}


async def answer_of(body: Object, *, protects: bool = False) -> Answer:
    return await JobAdmission(lambda _, namespace: protects and namespace == "lab").answer(
        Request("1", "lab", object=body)
    )


def policy_in(answer: Answer) -> Any:
    operation, _ = answer.patch
    assert (operation["op"], operation["path"]) == ("add", "/spec/podFailurePolicy")
    return operation["value"]


async def test_rule_is_added_to_a_job_that_names_an_id() -> None:
    assert policy_in(await answer_of(job())) == {"rules": [IGNORE_RULE]}


async def test_rule_is_added_to_every_job_of_a_namespace_that_protects_its_pods() -> None:
    assert policy_in(await answer_of(job(value=None), protects=True)) == {"rules": [IGNORE_RULE]}
    assert await answer_of(job(value=None)) == Answer("not-ours")


async def test_job_that_opts_out_is_left_alone() -> None:
    assert await answer_of(job(value=""), protects=True) == Answer("not-ours")


async def test_rule_precedes_those_of_the_job() -> None:
    answer = await answer_of(job(podFailurePolicy={"rules": [FAIL_ON_42]}))
    assert policy_in(answer) == {"rules": [IGNORE_RULE, FAIL_ON_42]}


async def test_job_that_decides_on_disruptions_itself_is_left_alone() -> None:
    own = {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert await answer_of(job(podFailurePolicy={"rules": [own]})) == Answer("unchanged")


async def test_job_whose_kubelet_restarts_containers_cannot_have_the_rule_and_gets_a_warning() -> None:
    answer = await answer_of(job(restarts="OnFailure"))
    assert answer.patch == ()
    (said,) = answer.warnings
    assert said.startswith("cedana: spec.template.spec.restartPolicy: 'OnFailure' makes the Job count each evicted pod")


@pytest.mark.parametrize("replacement", [{}, {"podReplacementPolicy": "TerminatingOrFailed"}])
async def test_pods_are_replaced_after_their_end(replacement: Object) -> None:
    _, operation = (await answer_of(job(**replacement))).patch
    assert operation == {"op": "add", "path": "/spec/podReplacementPolicy", "value": "Failed"}
