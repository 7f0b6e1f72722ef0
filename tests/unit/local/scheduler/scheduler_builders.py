"""Groups and jobs for the scheduler's tests, written the way one says them."""

from __future__ import annotations

from typing import Any

from cedana_sched.local.scheduler.resources import Resources
from cedana_sched.local.scheduler.scheduling_types import (
    AdmittedJob,
    Cohort,
    Eviction,
    Group,
    PendingJob,
    PreemptionPolicy,
    ShareStrategy,
)

MI = 1 << 20
FAIR = (ShareStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE, ShareStrategy.LESS_THAN_INITIAL_SHARE)
ANY, NEVER, LOWER = PreemptionPolicy.ANY, PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY
NEWER = PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY


def cpus(count: float, memory_mi: int | None = None) -> Resources:
    """So many cpus, with 100 Mi of memory for each unless told otherwise."""
    memory = int(count * 100) if memory_mi is None else memory_mi
    return Resources(round(count * 1000), memory * MI)


def group(name: str, nominal: float, **rules: Any) -> Group:
    return Group(name=name, nominal=cpus(nominal), **{"reclaim": ANY, "within_group": LOWER, **rules})


def cohort(*groups: Group, fair: bool = False) -> Cohort:
    return Cohort({g.name: g for g in groups}, FAIR if fair else ())


def pending(uid: str, group: str, count: float = 1, *, priority: int = 0, at: float = 100) -> PendingJob:
    return PendingJob(uid=uid, group=group, request=cpus(count), priority=priority, submitted_at=at)


def running(  # a builder names every property once
    uid: str,
    group: str,
    count: float = 1,
    *,
    priority: int = 0,
    at: float = 1,
    going_for: str | None = None,
    **more: Any,
) -> AdmittedJob:
    """A job that was submitted and admitted at `at`; `going_for` names the preemptor that it is held for."""
    return AdmittedJob(
        uid=uid,
        group=group,
        request=cpus(count),
        priority=priority,
        submitted_at=at,
        admitted_at=at,
        eviction=Eviction(going_for, revocable=True) if going_for else None,
        **more,
    )
