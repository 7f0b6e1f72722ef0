"""The time that a kubelet's configuration gives pods when their node is shut down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cedana_sched.kube.go_durations import parse_go_duration

SYSTEM_CRITICAL: Final = 2_000_000_000
"""Priority of `system-cluster-critical`; pods of this group end last, and the agent is one of them."""


def seconds_for_pods(configuration: Mapping[str, Any]) -> float | None:
    """Return the seconds that each pod without a system priority has at least, from the begin of the shutdown.

    Groups of `shutdownGracePeriodByPodPriority` end one after the other, and one without pods takes no time: so the
    shortest of them counts for all. A pod whose own grace period is shorter has less.

    Returns:
        None if the KubeletConfiguration sets no time.

    Raises:
        ValueError: it is no configuration that a kubelet starts with.
    """
    groups = configuration.get("shutdownGracePeriodByPodPriority")
    if groups:
        try:
            periods = [(int(one["priority"]), float(one["shutdownGracePeriodSeconds"])) for one in groups]
        except (KeyError, TypeError) as error:
            raise ValueError(f"shutdownGracePeriodByPodPriority is no list of groups: {error!r}") from error
        below = [seconds for priority, seconds in periods if priority < SYSTEM_CRITICAL and seconds > 0]
        return min(below, default=None)
    total, critical = (
        parse_go_duration(str(configuration.get(name, "0s")))
        for name in ("shutdownGracePeriod", "shutdownGracePeriodCriticalPods")
    )
    return total - critical if total > critical else None
