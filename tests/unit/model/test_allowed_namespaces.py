"""What a CheckpointPolicy says for the pods of a namespace."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.checkpoint_policy import effective_policy, read_spec
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure

WEAKER = {"onCheckpointFailure": "KeepRunning", "imageMayChange": True, "serviceAccountMayChange": True}
STRICT = CheckpointPolicy(deadline_seconds=90)
WEAK = STRICT.model_copy(
    update={
        "on_checkpoint_failure": OnCheckpointFailure.KEEP_RUNNING,
        "image_may_change": True,
        "service_account_may_change": True,
    }
)
FIELDS = ("spec.onCheckpointFailure", "spec.imageMayChange", "spec.serviceAccountMayChange")


def for_lab(name: str, **spec: Any) -> tuple[CheckpointPolicy, tuple[str, ...]]:
    found = effective_policy(name, read_spec(name, {"deadlineSeconds": 90, **spec}), "lab")
    return found.policy, found.withheld


@pytest.mark.parametrize("allowed", [{"from": "All"}, {"from": "Names", "names": ["bio", "lab"]}])
def test_a_policy_that_is_for_them_counts_as_it_is(allowed: Any) -> None:
    assert for_lab("p", allowedNamespaces=allowed, **WEAKER) == (WEAK, ())


def test_a_policy_that_does_not_say_for_whom_makes_nothing_weaker() -> None:
    assert for_lab("p", **WEAKER) == (STRICT, FIELDS)
    assert for_lab("p") == (STRICT, ())


@pytest.mark.parametrize("spec", [{}, {"allowedNamespaces": {"from": "Names", "names": ["bio"]}}])
def test_default_is_for_all(spec: Any) -> None:
    assert for_lab("default", **spec, **WEAKER) == (WEAK, ())


@pytest.mark.parametrize("names", [[], ["bio", "lab-2"]])
def test_a_policy_of_others_is_refused_with_the_remedy(names: list[str]) -> None:
    with pytest.raises(UsageError, match=r"'p' is not for pods of namespace lab .*spec\.allowedNamespaces"):
        for_lab("p", allowedNamespaces={"from": "Names", "names": names})


def test_a_way_to_allow_that_only_a_newer_release_knows_allows_nobody() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        for_lab("p", allowedNamespaces={"from": "Selector", "selector": {}})


def test_what_counts_is_what_records_hold() -> None:
    """A record is read by engines that know no field of an allow-list."""
    assert type(for_lab("p", allowedNamespaces={"from": "All"})[0]) is CheckpointPolicy
