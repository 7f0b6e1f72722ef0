"""One scheduling cycle as a pure function: admissions, preemptions, and why each other job waits.

The cycle has two ledgers. `now` is the current usage, including victims that are still being evicted; `then` is the
usage once the victims are gone and their preemptors are admitted. A job is admitted only if it fits in both: so a
freed place goes to the job for which it was freed, and no second victim is preempted for that job.
"""

from __future__ import annotations

from collections.abc import Iterator

from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.scheduler.reasons import (
    why_never_fitting,
    why_not_fitting,
    why_preempting,
    why_waiting_for_place,
)
from cedana_sched.local.scheduler.resources import Resources
from cedana_sched.local.scheduler.scheduling_types import (
    AdmittedJob,
    ClusterState,
    Decisions,
    PendingJob,
    Preemption,
    QueueingStrategy,
)
from cedana_sched.local.scheduler.victim_search import victims_for


def decide(state: ClusterState, now: float) -> Decisions:
    """Return the decisions for `state` at `now` (epoch seconds). Deterministic."""
    return _Cycle(state, now).run()


class _Cycle:
    """The working state of one call of `decide`."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self._state = state
        self._time = now
        pending = {job.uid for job in state.pending}
        stale = {a.uid for a in state.admitted if _is_eviction_stale(a, pending)}
        self._leaving = {a.uid: a for a in state.admitted if a.eviction is not None and a.uid not in stale}
        staying = [a for a in state.admitted if a.uid not in self._leaving]
        self._now = Ledger(state.cohort, ((a.group, a.request) for a in state.admitted))
        self._then = Ledger(state.cohort, ((a.group, a.request) for a in staying))
        self._staying = [a for a in staying if a.preemptible and a.uid not in stale and a.protected_until <= now]
        self._admissions: list[str] = []
        self._preemptions: list[Preemption] = []
        self._unneeded = sorted(stale)
        self._claims: set[str] = set()
        self._waiting: dict[str, str] = {}
        self._unschedulable: dict[str, str] = {}
        self._hopeless: dict[tuple[str, Resources, int], str] = {}
        """Requests that do not fit the current `then`, and why; there is no second search for an equal request."""

    def run(self) -> Decisions:
        for job in self._jobs_in_order():
            self._decide_job(job)
        return Decisions(
            admissions=tuple(self._admissions),
            preemptions=tuple(self._preemptions),
            unneeded=tuple(self._unneeded),
            waiting=self._waiting,
            unschedulable=self._unschedulable,
            claims=frozenset(self._claims.intersection(self._waiting)),
            wake_at=self._wake_at(),
        )

    def _jobs_in_order(self) -> Iterator[PendingJob]:
        """Yield jobs for which a place is being freed, then the heads of the groups' queues, one at a time."""
        claims = {job.uid for job in self._state.pending if job.claims}
        claims |= {a.eviction.preemptor for a in self._leaving.values() if a.eviction and a.eviction.preemptor}
        known = [job for job in self._state.pending if self._can_ever_run(job)]
        for job in sorted((job for job in known if job.uid in claims), key=_queue_order):
            if self._then.fits(job.group, job.request):
                self._claims.add(job.uid)
            yield job
        queues: dict[str, list[PendingJob]] = {}
        for job in sorted((job for job in known if job.uid not in claims), key=_queue_order):
            queues.setdefault(job.group, []).append(job)
        while queues:
            head = min((queue[0] for queue in queues.values()), key=self._head_order)
            yield head
            queue = queues[head.group]
            queue.pop(0)
            if self._is_blocking_queue(head):
                self._waiting |= {
                    job.uid: f"queued behind {head.display_name}, its group is StrictFIFO" for job in queue
                }
                queue.clear()
            if not queue:
                del queues[head.group]

    def _can_ever_run(self, job: PendingJob) -> bool:
        problem = why_never_fitting(self._state.cohort, job.group, job.request)
        if problem is not None:
            self._unschedulable[job.uid] = str(problem)
        return problem is None

    def _head_order(self, job: PendingJob) -> tuple[object, ...]:
        if self._state.cohort.share_strategies:
            return (self._then.share_with(job.group, job.request), *_queue_order(job))
        return (not self._then.within_nominal(job.group, job.request), *_queue_order(job))

    def _is_blocking_queue(self, job: PendingJob) -> bool:
        strict = self._state.cohort.groups[job.group].queueing is QueueingStrategy.STRICT_FIFO
        return strict and job.uid in self._waiting

    def _decide_job(self, job: PendingJob) -> None:
        if not self._then.fits(job.group, job.request):
            self._look_for_victims(job)
        elif self._now.fits(job.group, job.request):
            self._admit(job)
        else:
            self._waiting[job.uid] = why_waiting_for_place(job, list(self._leaving.values()))
            self._reserve_quota(job)

    def _admit(self, job: PendingJob) -> None:
        self._admissions.append(job.uid)
        self._now.add(job.group, job.request)
        self._reserve_quota(job)
        for victim in [v for v in self._leaving.values() if _is_revocable_for(v, job.uid)]:
            if self._then.fits(victim.group, victim.request):
                self._then.add(victim.group, victim.request)
                self._unneeded.append(victim.uid)
                del self._leaving[victim.uid]

    def _look_for_victims(self, job: PendingJob) -> None:
        kind = (job.group, job.request, job.priority)
        preemptions = [] if kind in self._hopeless else victims_for(job, self._staying, self._then)
        if not preemptions:
            why = self._hopeless.get(kind) or why_not_fitting(job, self._then)
            self._waiting[job.uid] = self._hopeless[kind] = why
            return
        self._preemptions += preemptions
        self._claims.add(job.uid)
        gone = {p.victim for p in preemptions}
        victims = [a for a in self._staying if a.uid in gone]
        for victim in victims:
            self._then.remove(victim.group, victim.request)
            self._leaving[victim.uid] = victim
        self._staying = [a for a in self._staying if a.uid not in gone]
        self._reserve_quota(job)
        self._waiting[job.uid] = why_preempting(preemptions, victims)

    def _reserve_quota(self, job: PendingJob) -> None:
        self._then.add(job.group, job.request)
        self._hopeless.clear()

    def _wake_at(self) -> float | None:
        if not self._waiting:
            return None
        ends = [a.protected_until for a in self._state.admitted if a.protected_until > self._time]
        return min(ends, default=None)


def _queue_order(job: PendingJob) -> tuple[int, float, str]:
    return (-job.priority, job.submitted_at, job.uid)


def _is_eviction_stale(job: AdmittedJob, pending: set[str]) -> bool:
    """Whether the job's preemptor is no longer pending and the eviction can still be cancelled."""
    eviction = job.eviction
    return eviction is not None and eviction.revocable and eviction.preemptor not in {None, *pending}


def _is_revocable_for(job: AdmittedJob, preemptor: str) -> bool:
    return job.eviction is not None and job.eviction.revocable and job.eviction.preemptor == preemptor
