"""The time that pods have when their node is shut down."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.graceful_node_shutdown import seconds_for_pods


def _groups(*pairs: tuple[int, int]) -> dict[str, Any]:
    fields = [{"priority": priority, "shutdownGracePeriodSeconds": seconds} for priority, seconds in pairs]
    return {"shutdownGracePeriodByPodPriority": fields}


@pytest.mark.parametrize(
    ("configuration", "wanted"),
    [
        ({}, None),
        ({"shutdownGracePeriod": "30s"}, 30.0),
        ({"shutdownGracePeriod": "1h0m0.5s", "shutdownGracePeriodCriticalPods": "0s"}, 3600.5),
        ({"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "30s"}, None),
        (_groups((0, 60), (100_000, 20), (2_000_000_000, 5)), 20.0),
        (_groups((0, 0), (100_000, 20)), 20.0),
        (_groups((2_000_000_000, 5)), None),
    ],
)
def test_pods_have_the_shortest_time_that_any_group_has(configuration: dict[str, Any], wanted: float | None) -> None:
    assert seconds_for_pods(configuration) == wanted


@pytest.mark.parametrize(
    "configuration",
    [
        {"shutdownGracePeriod": "30"},
        {"shutdownGracePeriod": ["30s"]},
        {"shutdownGracePeriodByPodPriority": [{"priority": 0}]},
        {"shutdownGracePeriodByPodPriority": 5},
    ],
)
def test_no_kubelet_starts_with_such_a_configuration(configuration: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is no (duration|list of groups)"):
        seconds_for_pods(configuration)
