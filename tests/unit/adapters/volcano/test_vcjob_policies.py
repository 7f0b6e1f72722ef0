"""Policies of vcjobs: every row of what was watched on a real Volcano, and what holds for all of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched_volcano.vcjob_policies import (
    MANY_RETRIES,
    acts_on_evicted_pod,
    find_preemption_losses,
    has_replica,
    rewrite_policies,
)

GUARDS = [{"exitCode": code, "action": "SyncJob"} for code in (137, 143)]
LONGEST_WARNING = 256
"""The API server cuts off what is longer."""


def job(*policies: dict[str, Any], replicas: int = 4, least: int = 1, **more: Any) -> dict[str, Any]:
    task = {"name": "w", "replicas": replicas, "template": {"spec": {"containers": [{"name": "main"}]}}}
    task["policies"] = more.pop("task_policies", [])
    return {"minAvailable": least, "tasks": [task], "policies": list(policies), **more}


def on(event: str, action: str, **more: Any) -> dict[str, Any]:
    return {"event": event, "action": action, **more}


def said(spec: dict[str, Any]) -> list[tuple[str, str]]:
    return [(loss.field, loss.value) for loss in find_preemption_losses(spec)]


def done(spec: dict[str, Any], event: str, *, code: int = 0, task: str = "w") -> str:
    """What the job controller does: `applyPolicies` (pkg/controllers/job/job_controller_util.go, 1.14.1)."""
    lists = [one["policies"] for one in spec["tasks"] if one["name"] == task] + [spec["policies"]]
    for policies in lists:
        for policy in policies:
            events = [*(policy.get("events") or []), *([policy["event"]] if "event" in policy else [])]
            if (event in events or "*" in events) and (event != "PodPending" or policy.get("timeout")):
                return str(policy["action"])
            if policy.get("exitCode") == code:
                return str(policy["action"])
    return "SyncJob"


def is_valid(policies: Sequence[dict[str, Any]]) -> bool:
    """`validatePolicies` (pkg/webhooks/admission/jobs/validate/util.go, 1.14.1)."""
    seen: list[str] = []
    codes: list[int] = []
    for policy in policies:
        events = list(dict.fromkeys([*(policy.get("events") or []), *([policy["event"]] if "event" in policy else [])]))
        if bool(events) == ("exitCode" in policy) or policy.get("exitCode") == 0:
            return False
        if events and policy["action"] == "SyncJob":
            return False
        seen += events
        codes += [policy["exitCode"]] if "exitCode" in policy else []
    return len(set(seen)) == len(seen) and len(set(codes)) == len(codes) and not ("*" in seen and len(seen) > 1)


def test_no_policy_is_no_loss() -> None:
    assert (
        find_preemption_losses({})
        == find_preemption_losses(job())
        == find_preemption_losses({"tasks": None, "policies": None})
        == ()
    )
    assert rewrite_policies(job()).spec == job()
    assert rewrite_policies(job()).changes == ()


@pytest.mark.parametrize("action", ["TerminateJob", "AbortJob", "CompleteJob"])
@pytest.mark.parametrize("event", ["PodFailed", "PodEvicted", "Unknown"])
def test_what_ends_the_job_when_it_is_preempted(event: str, action: str) -> None:
    for gang in (1, 4):
        spec = job(on(event, action), least=gang)
        assert said(spec) == [("spec.policies[0]", f"{event}: {action}")]
        rewritten = rewrite_policies(spec)
        assert find_preemption_losses(rewritten.spec) == ()
        assert done(rewritten.spec, event, code=137) == "SyncJob"
        assert rewritten.changes


@pytest.mark.parametrize("action", ["RestartJob", "RestartTask", "RestartPod", "RestartPartition"])
@pytest.mark.parametrize("event", ["PodFailed", "PodEvicted"])
def test_what_restarts_and_counts(event: str, action: str) -> None:
    """`PodEvicted: RestartPod` with two victims twice was the end of a job with the stock three retries."""
    spec = job(on(event, action))
    (loss,) = find_preemption_losses(spec)
    assert "counts towards maxRetry 3" in loss.effect
    assert done(rewrite_policies(spec).spec, event, code=137) == "SyncJob"
    assert rewrite_policies(spec).spec.get("maxRetry") is None


@pytest.mark.parametrize("event", ["PodFailed", "PodEvicted", "Unknown"])
def test_a_gang_is_restarted_as_a_whole_as_often_as_it_is_preempted(event: str) -> None:
    spec = job(on(event, "RestartJob"), least=4)
    (loss,) = find_preemption_losses(spec)
    assert "fails for good after 3" in loss.effect
    rewritten = rewrite_policies(spec)
    assert rewritten.spec["policies"] == spec["policies"]
    assert rewritten.spec["maxRetry"] == MANY_RETRIES
    assert rewritten.changes == (f"spec.maxRetry: 3 became {MANY_RETRIES}, because preemptions count",)
    assert find_preemption_losses(rewritten.spec) == ()


def test_a_gang_of_one_pod_is_none() -> None:
    assert rewrite_policies(job(on("PodEvicted", "RestartJob"), replicas=1)).spec["policies"] == []


def test_a_task_that_completes_when_it_is_asked_to_end_is_told_and_left() -> None:
    """The last pod exits with 0 on SIGTERM: Volcano counts the job as Completed, and the work is silently lost."""
    spec = job(on("TaskCompleted", "CompleteJob"))
    (loss,) = find_preemption_losses(spec)
    assert "counts the job as complete" in loss.effect
    assert loss.remedy == "have the program exit with another status on SIGTERM"
    assert rewrite_policies(spec).spec == spec


def test_waiting_for_a_place_can_be_what_ends_it() -> None:
    spec = job(on("PodPending", "AbortJob", timeout="10m"))
    assert said(spec) == [("spec.policies[0]", "PodPending: AbortJob")]
    assert rewrite_policies(spec).spec == spec
    assert find_preemption_losses(job(on("PodPending", "AbortJob"))) == ()  # Volcano passes over it


@pytest.mark.parametrize("code", [137, 143])
def test_exit_codes_of_evicted_pods(code: int) -> None:
    spec = job({"exitCode": code, "action": "TerminateJob"}, {"exitCode": 3, "action": "AbortJob"})
    assert said(spec) == [("spec.policies[0]", f"exitCode {code}: TerminateJob")]
    rewritten = rewrite_policies(spec).spec
    assert done(rewritten, "PodFailed", code=code) == "SyncJob"
    assert done(rewritten, "PodFailed", code=3) == "AbortJob"


def test_what_is_taken_out_does_not_uncover_what_stood_behind_it() -> None:
    codes = [{"exitCode": code, "action": "AbortJob"} for code in (137, 143)]
    rewritten = rewrite_policies(job(*codes, on("PodFailed", "TerminateJob"))).spec
    assert [done(rewritten, "PodFailed", code=code) for code in (137, 143, 1)] == ["SyncJob", "SyncJob", "TerminateJob"]


def test_who_has_taken_evictions_out_already_hears_nothing() -> None:
    guards = [{"exitCode": code, "action": "SyncJob"} for code in (143, 137)]
    spec = job(*guards, on("PodFailed", "TerminateJob"))
    assert find_preemption_losses(spec) == ()
    assert rewrite_policies(spec).spec == spec
    behind = job(on("PodFailed", "TerminateJob"), *guards)
    assert len(find_preemption_losses(behind)) == 1
    assert rewrite_policies(behind).spec == spec


def test_a_task_has_policies_of_its_own() -> None:
    spec = job(task_policies=[on("PodFailed", "RestartTask"), on("TaskCompleted", "CompleteJob")])
    assert said(spec)[0] == ("spec.tasks[0].policies[0]", "PodFailed: RestartTask")
    rewritten = rewrite_policies(spec).spec["tasks"][0]["policies"]
    assert [one.get("exitCode") for one in rewritten] == [137, 143, None, None]


def test_some_events_of_a_policy_go_and_others_stay() -> None:
    spec = job({"events": ["PodEvicted", "PodFailed", "TaskCompleted"], "action": "TerminateJob", "timeout": "5s"})
    kept = {"events": ["PodFailed", "TaskCompleted"], "action": "TerminateJob", "timeout": "5s"}
    assert rewrite_policies(spec).spec["policies"][2:] == [kept]


def test_any_event_is_all_of_them() -> None:
    spec = job(on("*", "TerminateJob"))
    assert {value.split(":")[0] for _, value in said(spec)} == {"PodFailed", "PodEvicted", "Unknown", "TaskCompleted"}
    rewritten = rewrite_policies(spec).spec
    assert done(rewritten, "PodEvicted") == "SyncJob"
    assert done(rewritten, "PodFailed", code=1) == done(rewritten, "TaskCompleted") == "TerminateJob"


def test_failures_of_tasks_and_changes_of_jobs_are_no_preemptions() -> None:
    assert find_preemption_losses(job(on("TaskFailed", "TerminateJob"), on("JobUpdated", "RestartJob"))) == ()
    assert find_preemption_losses(job(on("PodEvicted", "ResumeJob"), {"exitCode": 3, "action": "TerminateJob"})) == ()


ACTIONS = st.sampled_from(
    [
        "AbortJob",
        "RestartJob",
        "RestartTask",
        "RestartPod",
        "RestartPartition",
        "TerminateJob",
        "CompleteJob",
        "ResumeJob",
    ]
)
EVENTS = ["PodPending", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated"]
POLICY = st.one_of(
    st.builds(on, st.sampled_from(EVENTS), ACTIONS),
    st.builds(on, st.sampled_from(EVENTS), ACTIONS, timeout=st.just("10m")),
    st.builds(
        lambda events, action: {"events": events, "action": action},
        st.lists(st.sampled_from(EVENTS), min_size=1, max_size=3, unique=True),
        ACTIONS,
    ),
    st.builds(lambda code, action: {"exitCode": code, "action": action}, st.sampled_from([1, 137, 143]), ACTIONS),
    st.builds(lambda code: {"exitCode": code, "action": "SyncJob"}, st.sampled_from([137, 143])),
)
POLICIES = st.one_of(
    st.lists(POLICY, max_size=4), st.lists(st.builds(on, st.just("*"), ACTIONS), min_size=1, max_size=1)
).filter(is_valid)


@given(POLICIES, POLICIES, st.sampled_from([1, 4]), st.sampled_from([None, 0, 3, 5000]))
def test_a_rewritten_job_outlives_preemptions_and_treats_failures_as_before(
    of_job: list[dict[str, Any]], of_task: list[dict[str, Any]], least: int, retries: int | None
) -> None:
    spec = job(*of_job, least=least, task_policies=of_task, schedulerName="volcano")
    spec |= {} if retries is None else {"maxRetry": retries}
    before = copy.deepcopy(spec)
    rewritten = rewrite_policies(spec)
    assert spec == before
    now = json.loads(json.dumps(rewritten.spec))
    assert is_valid(now["policies"])
    assert is_valid(now["tasks"][0]["policies"])
    assert rewrite_policies(now).spec == now
    assert bool(rewritten.changes) == (now != before)
    harmless_actions = {"SyncJob", "ResumeJob"} | ({"RestartJob"} if least == 4 else set())
    for event, code in (("PodFailed", 137), ("PodFailed", 143), ("PodEvicted", 0), ("Unknown", 0)):
        action = done(now, event, code=code, task="" if event == "Unknown" else "w")
        assert action in harmless_actions, (event, code)
        assert action != "RestartJob" or now["maxRetry"] >= MANY_RETRIES
    for event, code in (("PodFailed", 1), ("PodFailed", 2), ("TaskCompleted", 0), ("TaskFailed", 0), ("PodPending", 0)):
        assert done(now, event, code=code) == done(before, event, code=code)
    assert {loss.value.split(":")[0] for loss in find_preemption_losses(now)} <= {"TaskCompleted", "PodPending"}
    assert all(len(str(loss)) <= LONGEST_WARNING for loss in find_preemption_losses(before))
    now["policies"] = before["policies"]
    now["tasks"][0]["policies"] = before["tasks"][0]["policies"]
    now.pop("maxRetry", None), before.pop("maxRetry", None)
    assert now == before


@pytest.mark.parametrize(
    ("policies", "acts"),
    [
        ([], False),
        ([{"event": "PodEvicted", "action": "RestartJob"}], True),
        ([{"events": ["TaskCompleted", "Unknown"], "action": "RestartTask"}], True),
        ([{"event": "*", "action": "AbortJob"}], True),
        ([{"event": "PodFailed", "action": "TerminateJob"}], True),
        ([{"event": "PodEvicted", "action": "SyncJob"}], False),
        ([{"event": "TaskCompleted", "action": "CompleteJob"}], False),
        ([{"exitCode": 137, "action": "RestartJob"}], True),
        ([{"exitCode": 3, "action": "RestartJob"}], False),
        ([*GUARDS, {"event": "PodFailed", "action": "TerminateJob"}], False),
        ([*GUARDS, {"exitCode": 143, "action": "TerminateJob"}], False),
        ([GUARDS[0], {"event": "PodFailed", "action": "TerminateJob"}], True),
        ([{"event": "PodFailed", "action": "TerminateJob"}, *GUARDS], True),
    ],
)
@pytest.mark.parametrize("of", ["job", "task"])
def test_policies_that_act_on_the_eviction_of_a_single_pod(policies: list[Any], acts: bool, of: str) -> None:
    spec = {"policies": policies} if of == "job" else {"tasks": [{"name": "worker", "policies": policies}]}
    assert acts_on_evicted_pod(spec) is acts


@pytest.mark.parametrize(
    ("task", "index", "has"),
    [("one", "0", True), ("one", "1", False), ("two", "1", True), ("three", "0", False), ("two", "x", False)],
)
def test_replicas_of_tasks(task: str, index: str, has: bool) -> None:
    assert has_replica({"tasks": [{"name": "one"}, {"name": "two", "replicas": 2}]}, task, index) is has
