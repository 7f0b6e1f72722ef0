"""Whether Volcano can preempt at all, and whom: configuration traps independent of ours that users meet first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched_volcano.doctor.scheduler_conf import SchedulerConfiguration
from cedana_sched_volcano.extender.pod_states_interface import Way

CHECK: Final = "volcano preemption"
QUEUES: Final = "volcano queues"

_KNOWN: Final = frozenset({
    "enqueue", "allocate", "backfill", "preempt", "reclaim", "shuffle", "gangpreempt", "gangreclaim",
})  # fmt: skip
_WITHOUT: Final[dict[Way, str]] = {
    "preempt": "no job makes room for one of a higher priority in its queue",
    "reclaim": "no queue gets back what others borrow of its share",
}
_SWITCHES: Final[dict[Way, str]] = {"preempt": "enablePreemptable", "reclaim": "enableReclaimable"}


def check_actions(configuration: SchedulerConfiguration) -> Iterator[Finding]:
    """Yield which kinds of preemption the scheduler performs."""
    for unknown in (action for action in configuration.actions if action not in _KNOWN):
        message = f"action {unknown!r} is unknown to us; Volcano refuses the whole file if it does not support it"
        yield Finding(CHECK, Level.WARN, message, "see the scheduler's log for 'failed to find Action'")
    for way, without in _WITHOUT.items():
        if way in configuration.actions or f"gang{way}" in configuration.actions:
            yield Finding(CHECK, Level.OK, f"it performs '{way}'")
        else:
            remedy = f"add {way!r} to actions where that is wanted"
            yield Finding(CHECK, Level.WARN, f"actions lack '{way}': {without}", remedy)


def check_plugins(configuration: SchedulerConfiguration) -> Iterator[Finding]:
    """Yield plugins that prevent preemptions, or allow too many."""
    names = {plugin.name for tier in configuration.tiers for plugin in tier}
    if "overcommit" in names:
        message = "the overcommit plugin keeps jobs from getting pods while the cluster is full: they never preempt"
        yield Finding(CHECK, Level.WARN, message, "remove it, or raise its overcommit-factor far above the stock 1.2")
    if {"proportion", "capacity"} <= names:
        message = "proportion and capacity both say what a queue deserves"
        yield Finding(CHECK, Level.WARN, message, "keep one: proportion for weights, capacity for Queue.spec.deserved")
    if any(_has_share_conflict([(one.name, one.hierarchy) for one in tier]) for tier in configuration.tiers):
        message = "proportion and drf with enableHierarchy stand in one tier: Volcano refuses the file"
        yield Finding(CHECK, Level.FAIL, message, "keep one of them")
    for way in _enabled_actions(configuration):
        yield from _check_gang_votes(configuration, way)
    if "reclaim" in configuration.actions:
        yield from _check_queue_shares(configuration)


def _enabled_actions(configuration: SchedulerConfiguration) -> list[Way]:
    return [way for way in _WITHOUT if way in configuration.actions]


def _has_share_conflict(tier: Sequence[tuple[str, bool]]) -> bool:
    return ("drf", True) in tier and any(name == "proportion" for name, _ in tier)


def _check_gang_votes(configuration: SchedulerConfiguration, way: Way) -> Iterator[Finding]:
    voting = [tier for tier in configuration.tiers if any(plugin.is_voting_on(way) for plugin in tier)]
    for number, tier in enumerate(voting):
        if not any(plugin.name == "gang" and plugin.is_enabled_for(way) for plugin in tier):
            continue
        remedy = f"set {_SWITCHES[way]}: false on gang, so that whole gangs can make room"
        if number + 1 < len(voting):
            message = (
                f"'{way}': gangs that are no larger than their minAvailable are passed on to the next tier, "
                "which may break them up"
            )
            yield Finding(CHECK, Level.WARN, message, remedy)
        else:
            message = f"'{way}' never takes jobs whose minAvailable is all of their pods: the gang plugin protects them"
            yield Finding(CHECK, Level.WARN, message, remedy)


def _check_queue_shares(configuration: SchedulerConfiguration) -> Iterator[Finding]:
    shares = configuration.find_plugin("proportion") or configuration.find_plugin("capacity")
    if shares is None:
        message = "neither proportion nor capacity says what a queue deserves: 'reclaim' takes from any queue"
        yield Finding(CHECK, Level.WARN, message, "add one of them")
        return
    voting = [tier for tier in configuration.tiers if any(plugin.is_voting_on("reclaim") for plugin in tier)]
    if shares.reclaimable and not any(one.name == shares.name for one in voting[0]):
        unused = f"{shares.name} is not called there"
        message = f"an earlier tier decides 'reclaim' alone wherever it finds a victim: {unused}"
        yield Finding(CHECK, Level.WARN, message, "put all plugins into one tier")


def check_queues(configuration: SchedulerConfiguration, found: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Yield queues that cannot give back, or cannot reclaim. `found` are Queue objects."""
    if "reclaim" not in configuration.actions:
        return
    by_deserved = configuration.find_plugin("capacity") is not None
    for queue in found:
        name, spec, status = queue["metadata"]["name"], queue.get("spec") or {}, queue.get("status") or {}
        if name == "root":
            continue
        if spec.get("reclaimable") is False:
            message = f"queue {name} never gives back what it borrows"
            yield Finding(QUEUES, Level.WARN, message, "set spec.reclaimable: true where that is not meant")
        if by_deserved and not spec.get("deserved"):
            message = f"queue {name} has no spec.deserved, by which the capacity plugin would claim for it"
            yield Finding(QUEUES, Level.WARN, message, "set it, as in deserved: {cpu: 8, memory: 32Gi}")
        if (state := status.get("state", "Open")) != "Open":
            yield Finding(QUEUES, Level.WARN, f"queue {name} is {state}: its jobs get no pods", "open it")
