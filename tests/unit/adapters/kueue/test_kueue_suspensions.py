"""The hold of a Job's suspension, rule by rule."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_kueue.webhooks import KueueWebhooks
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.schedulers import ReplicaAccess
from tests.unit.webhooks.admission_builders import hold, knowledge, pod, suspension

NOW = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)
OF_AN_EARLIER_RUN = "2026-05-01T10:59:59Z"


class Desk:
    """A replica whose clock stands still until it is set."""

    def __init__(self, *holds: PreemptionHold) -> None:
        self.seconds = 1000.0
        self.known = knowledge(holds=holds)
        served = ServedNamespaces(frozenset({"monitoring"}))
        replica = ReplicaAccess(cast("Api", None), self.known, served, now=lambda: NOW)
        self.webhooks = KueueWebhooks(replica, lambda: self.seconds)

    def ask(self, request: Request) -> Answer:
        return asyncio.run(self.webhooks._answer_job_admission(request))


def refused(answer: Answer) -> str:
    assert answer.refusal is not None, answer
    assert (answer.refusal.code, answer.refusal.reason) == (429, "TooManyRequests")
    assert answer.patch == ()
    return answer.refusal.message


def test_a_hold_before_its_deadline_refuses() -> None:
    desk = Desk(hold())
    desk.seconds += 10_000.0  # how long it was asked for does not matter
    assert refused(desk.ask(suspension())) == "Held for checkpoint by cedana: Preempted, at most 570 s more"


def test_the_seconds_left_are_rounded_up() -> None:
    message = refused(Desk(hold(deadline="2026-05-01T12:00:30.100000Z")).ask(suspension()))
    assert message.endswith("at most 1 s more")


def test_a_hold_past_its_deadline_allows() -> None:
    assert Desk(hold(deadline="2026-05-01T12:00:30.000000Z")).ask(suspension()) == Answer("past-deadline")


def test_a_hold_that_is_over_hides_none_though_it_was_dated_ahead() -> None:
    """The API server's clock was half an hour ahead when the Job was evicted the last time."""
    over = hold(
        "hold-0",
        step=HoldStep.RELEASED,
        created="2026-05-01T12:30:00Z",
        deadline="2026-05-01T12:40:00Z",
        verdicts=(Verdict.COMMITTED,),
    )
    assert refused(Desk(hold(), over).ask(suspension()))


@pytest.mark.parametrize("step", [HoldStep.RELEASING, HoldStep.RELEASED])
def test_a_hold_that_is_over_allows(step: HoldStep) -> None:
    assert Desk(hold(step=step)).ask(suspension()) == Answer("over")


@pytest.mark.parametrize("step", list(HoldStep))
def test_the_annotation_of_the_release_allows_and_goes(step: HoldStep) -> None:
    request = suspension(annotations={names.RELEASED_HOLD: "hold-1", "mine": "x"})
    answer = Desk(hold(step=step)).ask(request)
    assert answer.decision == "released"
    assert answer.refusal is None
    assert request.object is not None
    assert apply_json_patch(request.object, answer.patch)["metadata"]["annotations"] == {"mine": "x"}


@pytest.mark.parametrize("earlier", [(), (hold("hold-0", created=OF_AN_EARLIER_RUN, step=HoldStep.RELEASED),)])
def test_a_release_without_any_hold_allows_since_there_is_nothing_to_save(earlier: tuple[PreemptionHold, ...]) -> None:
    answer = Desk(*earlier).ask(suspension(annotations={names.RELEASED_HOLD: "hold-9"}))
    assert answer.decision == "released"
    assert answer.patch


def test_a_release_of_something_else_does_not_end_a_hold() -> None:
    refused(Desk(hold()).ask(suspension(annotations={names.RELEASED_HOLD: "hold-9"})))


def test_the_annotation_of_an_older_release_does_not_allow() -> None:
    older = hold("hold-0", created="2026-05-01T11:30:00Z", step=HoldStep.RELEASED)
    assert "Preempted" in refused(Desk(older, hold()).ask(suspension(annotations={names.RELEASED_HOLD: "hold-0"})))


@pytest.mark.parametrize("step", [HoldStep.RELEASING, HoldStep.RELEASED])
@pytest.mark.parametrize("annotations", [{}, {names.RELEASED_HOLD: "hold-1"}])
def test_what_is_left_of_an_earlier_runs_hold_does_not_allow(step: HoldStep, annotations: dict[str, str]) -> None:
    """A Job that was evicted, continued and is evicted again is held again."""
    desk = Desk(hold(created=OF_AN_EARLIER_RUN, step=step))
    assert "at most 30 s more" in refused(desk.ask(suspension(annotations=annotations)))


def test_an_earlier_runs_hold_whose_coordinator_died_does_not_allow_for_ever() -> None:
    desk = Desk(hold(created=OF_AN_EARLIER_RUN, deadline="2026-05-01T11:00:00.000000Z"))
    refused(desk.ask(suspension()))
    desk.seconds += 30.0
    assert desk.ask(suspension()) == Answer("nobody-holds")


def test_a_hold_made_in_the_second_in_which_the_run_began_is_of_this_run() -> None:
    over = hold(created="2026-05-01T11:00:00Z", step=HoldStep.RELEASED)
    assert Desk(over).ask(suspension(started_at="2026-05-01T11:00:00Z")) == Answer("over")


@pytest.mark.parametrize("step", [HoldStep.RELEASING, HoldStep.RELEASED])
def test_a_hold_that_was_taken_back_says_nothing_of_the_next_eviction(step: HoldStep) -> None:
    desk = Desk()
    refused(desk.ask(suspension()))
    desk.seconds += 600.0
    desk.known.on_hold_change(None, hold(step=step, verdicts=(Verdict.NOT_NEEDED, Verdict.NOT_NEEDED)))
    assert "at most 30 s more" in refused(desk.ask(suspension())), "it waits anew, not since the first eviction"
    desk.seconds += 31.0
    assert desk.ask(suspension()).decision == "nobody-holds"


@pytest.mark.parametrize("verdict", [Verdict.COMMITTED, Verdict.EVICT, Verdict.KEEP_RUNNING])
def test_one_victim_that_is_to_go_is_reason_enough(verdict: Verdict) -> None:
    over = hold(step=HoldStep.RELEASED, verdicts=(Verdict.NOT_NEEDED, verdict))
    assert Desk(over).ask(suspension()) == Answer("over")


def test_without_a_hold_it_waits_thirty_seconds_from_the_first_request() -> None:
    desk = Desk()
    sentence = "Held for checkpoint by cedana: the coordinator has not taken the eviction up yet, at most {} s more"
    assert refused(desk.ask(suspension())) == sentence.format(30)
    desk.seconds += 20.5
    assert refused(desk.ask(suspension())) == sentence.format(10)
    desk.seconds += 9.5
    assert desk.ask(suspension()) == Answer("nobody-holds")


def test_the_next_run_of_the_job_waits_anew() -> None:
    desk = Desk()
    desk.ask(suspension())
    desk.seconds += 30.0
    assert desk.ask(suspension()).decision == "nobody-holds"
    refused(desk.ask(suspension(started_at="2026-05-01T12:00:10Z")))


def test_a_hold_without_a_status_yet_counts_as_none() -> None:
    desk = Desk(hold(deadline=None))
    assert "not taken the eviction up" in refused(desk.ask(suspension()))
    desk.seconds += 31.0
    assert desk.ask(suspension()).decision == "nobody-holds"


def test_a_hold_that_comes_late_still_holds() -> None:
    desk = Desk()
    desk.ask(suspension())
    desk.seconds += 29.0
    desk.known.on_hold_change(None, hold())
    assert "Preempted" in refused(desk.ask(suspension()))
    desk.seconds += 600.0
    desk.known.on_hold_change(hold(), hold(step=HoldStep.RELEASED))
    assert desk.ask(suspension()).decision == "over"


def test_a_dry_run_is_answered_and_not_remembered() -> None:
    desk = Desk()
    refused(desk.ask(suspension(dry_run=True)))
    assert len(desk.webhooks._first_requests) == 0


@pytest.mark.parametrize(
    "request_fields",
    [
        {"user": "alice"},
        {"active": 0},
        {"template": pod(None)},
        {"template": pod("not valid!")},
    ],
)
def test_who_is_not_held(request_fields: dict[str, Any]) -> None:
    assert Desk(hold()).ask(suspension(**request_fields)) == Answer("not-ours")


def test_a_job_of_an_excluded_namespace_is_not_held() -> None:
    request = msgspec.structs.replace(suspension(), namespace="monitoring")
    assert Desk(hold()).ask(request) == Answer("not-ours")


def test_another_job_is_not_held_by_this_hold() -> None:
    assert "not taken the eviction up" in refused(Desk(hold(uid="other")).ask(suspension()))


def test_only_the_suspension_is_held() -> None:
    request = suspension()
    assert request.old_object is not None
    assert request.object is not None
    request.old_object["spec"]["suspend"] = True
    assert Desk(hold()).ask(request) == Answer("not-ours")
    request.object["spec"]["suspend"] = False
    assert Desk(hold()).ask(request) == Answer("not-ours")


FOR_EVER = "2999-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(("created", "is_held"), [("2026-04-30T12:05:00Z", True), ("2026-04-30T11:59:00Z", False)])
def test_no_hold_lasts_longer_than_any_policy_allows(created: str, is_held: bool) -> None:
    """It counts from when the API server has created it, which nobody else writes."""
    request = suspension(started_at="2026-04-30T11:00:00Z")
    answer = Desk(hold(deadline=FOR_EVER, created=created)).ask(request)
    if is_held:
        assert "at most 330 s more" in refused(answer), "24 h and a minute from its creation"
    else:
        assert answer == Answer("past-deadline")


def test_a_hold_of_another_namespace_holds_no_job_of_this_one() -> None:
    theirs = hold(deadline=FOR_EVER)
    forged = msgspec.structs.replace(theirs, metadata=msgspec.structs.replace(theirs.metadata, namespace="tenant-b"))
    assert "has not taken the eviction up yet" in refused(Desk(forged).ask(suspension()))
