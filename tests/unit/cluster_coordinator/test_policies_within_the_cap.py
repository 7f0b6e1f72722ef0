"""What adapters are told of a policy is within what the installation allows, whatever stands in the policy."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.policies import ClusterPolicies, _PolicyObject
from cedana_sched.kube.objects import Metadata


@pytest.mark.parametrize(
    ("name", "deadlines"), [("long", (3_600, 3_600)), ("short", (30, 600)), ("gone", (600, 600)), (None, (600, 600))]
)
def test_a_deadline_is_no_longer_than_allowed(name: str | None, deadlines: tuple[float, float]) -> None:
    policies = ClusterPolicies(cast("Any", None), 3_600)
    for known, spec in (
        ("long", {"deadlineSeconds": 86_400, "restoreDeadlineSeconds": 86_400}),
        ("short", {"deadlineSeconds": 30}),
    ):
        policies._mirror._put(_PolicyObject(Metadata(known), spec))
    found = policies.named(name)
    assert (found.deadline_seconds, found.restore_deadline_seconds) == deadlines
