"""No word of a policy or of a hold has anything wait for longer than the installation allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.eviction_holds import pod_eviction_rule
from cedana_sched.eviction_holds.decision import UNANNOUNCED_SECONDS
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.cached_hold import (
    CLOCKS_DIFFER,
    HeldObject,
    HoldSpec,
    HoldStatus,
    PreemptionHold,
    VictimStatus,
)
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep
from cedana_sched_kueue import suspension_decision
from cedana_sched_volcano.extender.cached_pod_states import CachedPodStates
from cedana_sched_webhooks import validation
from cedana_sched_webhooks.caches import AdmissionCaches
from tests.unit.webhooks.admission_builders import Shelf, creation, policy

LONGEST = 600.0
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WITHIN, AFTER = NOON + timedelta(seconds=LONGEST), NOON + timedelta(seconds=LONGEST + 1) + CLOCKS_DIFFER
FOR_EVER = "2999-01-01T00:00:00Z"


def known() -> AdmissionCaches:
    return AdmissionCaches(Shelf(), Shelf(), Shelf([policy("long", deadlineSeconds=86_400)]), LONGEST)


def forged(step: HoldStep = HoldStep.HOLDING, *victims: VictimStatus) -> PreemptionHold:
    """A hold of a Job and of a pod, made at noon, that says it lasts until 2999."""
    metadata = Metadata("hold-1", "lab", "hold-uid", creation_timestamp=NOON.isoformat())
    spec = HoldSpec("Preempted", HeldObject("job-uid"), "signal-1", NOON.isoformat())
    return PreemptionHold(metadata, spec, HoldStatus(step, FOR_EVER, None, victims))


def of_pod(hold: PreemptionHold) -> AdmissionCaches:
    found = known()
    found.on_checkpoint_change(
        None,
        Checkpoint(
            Metadata("c", "lab"), CheckpointSpec(IdentitySpec("md"), PodRef("pod-uid", node_name="node1"), "signal-1")
        ),
    )
    found.on_hold_change(None, hold)
    return found


def test_a_policy_that_asks_for_more_is_refused() -> None:
    check = validation.checks_by_kind(LONGEST)["checkpointpolicies"]
    spec = {"deadlineSeconds": 86_400, "onCheckpointFailure": "KeepRunning"}
    answer = validation.validate_write(creation({"metadata": {"name": "x"}, "spec": spec}), check)
    assert answer.refusal is not None
    assert "spec.deadlineSeconds: 86400.0 is longer than this installation allows" in answer.refusal.message
    assert (
        validation.validate_write(
            creation({"metadata": {"name": "x"}, "spec": {"deadlineSeconds": 600}}), check
        ).refusal
        is None
    )


def test_a_policy_that_is_there_already_counts_for_so_much() -> None:
    assert known().policy_for_pods("long", "lab").policy.deadline_seconds == LONGEST


@pytest.mark.parametrize(("now", "word"), [(WITHIN, "held"), (AFTER, "past-deadline")])
def test_no_hold_of_a_pod_lasts_longer(now: datetime, word: str) -> None:
    holds = of_pod(forged()).holds_of_pod("lab", "pod-uid")
    assert pod_eviction_rule.decide("pod-uid", None, holds, now, requested_seconds=1e6).word == word


@pytest.mark.parametrize(("now", "word"), [(WITHIN, pod_eviction_rule.KEPT), (AFTER, "nobody-holds")])
def test_nobody_is_kept_running_for_longer_by_a_hold_that_is_never_released(now: datetime, word: str) -> None:
    hold = forged(HoldStep.RELEASING, VictimStatus("pod-uid", Verdict.KEEP_RUNNING))
    holds = of_pod(hold).holds_of_pod("lab", "pod-uid")
    assert pod_eviction_rule.decide("pod-uid", None, holds, now, requested_seconds=1e6).word == word


def test_a_wish_is_not_new_for_ever_because_a_hold_was_taken_back() -> None:
    """Until its end nobody was to be held by it; after that what was asked meanwhile counts."""
    hold = forged(HoldStep.RELEASING, VictimStatus("pod-uid", Verdict.NOT_NEEDED))
    holds = of_pod(hold).holds_of_pod("lab", "pod-uid")
    after = AFTER + timedelta(seconds=UNANNOUNCED_SECONDS)
    assert pod_eviction_rule.decide("pod-uid", None, holds, after, requested_seconds=LONGEST).word == "nobody-holds"


@pytest.mark.parametrize(("now", "word"), [(WITHIN, "held"), (AFTER, "past-deadline")])
def test_no_hold_of_a_job_lasts_longer(now: datetime, word: str) -> None:
    holds = of_pod(forged()).holds_of("lab", "job-uid")
    suspension = suspension_decision.Suspension("job-uid", None, None)
    assert suspension_decision.decide_suspension(suspension, holds, waited_seconds=1e6, now=now).word == word


def test_pods_are_not_being_saved_for_longer() -> None:
    hold = forged()
    found = known()
    found.on_hold_change(None, msgspec.structs.replace(hold, spec=HoldSpec("Preempted", None, "s", NOON.isoformat())))
    assert found.is_saving_pods(WITHIN, timedelta(seconds=1))
    assert not found.is_saving_pods(AFTER, timedelta(seconds=1))


def test_volcanos_extender_is_bound_by_the_same() -> None:
    holding = CachedPodStates(cast("Any", None), longest_deadline_seconds=LONGEST)
    assert holding._preemptions.longest_seconds == LONGEST
