"""Victims by weighted fair share: taken first from the groups that borrow most relative to their weight.

Source of the rules: Kueue v0.19, pkg/scheduler/preemption/fair_strategy.go (rules S2-a and S2-b of KEP-1714).
"""

from __future__ import annotations

from cedana_sched.local.scheduler.candidates import Candidate
from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.scheduler.quota_preemption import drop_needless_victims
from cedana_sched.local.scheduler.scheduling_types import PendingJob, Preemption, PreemptionReason, ShareStrategy


def share_victims(job: PendingJob, candidates: list[Candidate], ledger: Ledger) -> list[Preemption]:
    """Return a minimal set of victims that makes place and that fair sharing allows; empty if there is none."""
    search = _Search(job, candidates, ledger)
    try:
        fits = search.run()
    finally:
        search.restore_ledger()
    if not fits:
        return []
    kept = drop_needless_victims(job, search.taken, ledger, may_borrow=True)
    return [candidate.preemption_for(job, search.reasons[candidate.job.uid]) for candidate in kept]


class _Search:
    """One search over the candidates. The ledger includes the job meanwhile, because shares must account for it."""

    def __init__(self, job: PendingJob, candidates: list[Candidate], ledger: Ledger) -> None:
        self.job = job
        self.ledger = ledger
        self.taken: list[Candidate] = []
        self.reasons: dict[str, PreemptionReason] = {}
        self._candidates = candidates
        self._entitled = ledger.within_nominal(job.group, job.request)
        ledger.add(job.group, job.request)

    def run(self) -> bool:
        first, *second = self.ledger.cohort.share_strategies
        fits, rest = self._take_allowed_candidates(self._candidates, first)
        own_taken = PreemptionReason.IN_CLUSTER_QUEUE in self.reasons.values()
        if not fits and own_taken:  # without those jobs, the job's group has a smaller share than before
            fits, rest = self._take_allowed_candidates(rest, first)
        if not fits and second:
            fits = self._take_one_per_group(rest)
        return fits

    def restore_ledger(self) -> None:
        for candidate in self.taken:
            self.ledger.add(candidate.job.group, candidate.job.request)
        self.ledger.remove(self.job.group, self.job.request)

    def _take_allowed_candidates(
        self, candidates: list[Candidate], strategy: ShareStrategy
    ) -> tuple[bool, list[Candidate]]:
        """Take candidates that `strategy` allows; return whether the job fits, and the candidates passed over."""
        queues = _by_group(candidates)
        passed_over: list[Candidate] = []
        while (name := self._group_with_highest_share(queues)) is not None:
            candidate = queues[name].pop(0)
            reason = self._preemption_reason(candidate, strategy)
            if reason is None:
                passed_over.append(candidate)
            elif self._take_victim(candidate, reason):
                return True, []
        return False, passed_over

    def _take_one_per_group(self, candidates: list[Candidate]) -> bool:
        """Rule S2-b: take at most one more from each group whose share is above that of the job's group."""
        queues = _by_group(candidates)
        while (name := self._group_with_highest_share(queues)) is not None:
            candidate = queues.pop(name)[0]
            reason = self._preemption_reason(candidate, ShareStrategy.LESS_THAN_INITIAL_SHARE)
            if reason is not None and self._take_victim(candidate, reason):
                return True
        return False

    def _group_with_highest_share(self, queues: dict[str, list[Candidate]]) -> str | None:
        """Return the group with candidates and the highest share; other groups that borrow nothing are exempt."""
        names = [n for n in sorted(queues) if queues[n] and (n == self.job.group or self.ledger.borrows(n))]
        return max(names, key=self.ledger.dominant_share_of) if names else None

    def _preemption_reason(self, candidate: Candidate, strategy: ShareStrategy) -> PreemptionReason | None:
        victim = candidate.job
        if victim.group == self.job.group:
            return PreemptionReason.IN_CLUSTER_QUEUE
        if self._entitled:
            return PreemptionReason.IN_COHORT_RECLAMATION
        ours = self.ledger.dominant_share_of(self.job.group)
        if strategy is ShareStrategy.LESS_THAN_INITIAL_SHARE:
            allowed = ours < self.ledger.dominant_share_of(victim.group)
        else:
            allowed = ours <= self.ledger.share_without(victim.group, victim.request)
        return PreemptionReason.IN_COHORT_FAIR_SHARING if allowed else None

    def _take_victim(self, candidate: Candidate, reason: PreemptionReason) -> bool:
        """Remove the victim from the ledger; return whether the job now fits."""
        self.ledger.remove(candidate.job.group, candidate.job.request)
        self.taken.append(candidate)
        self.reasons[candidate.job.uid] = reason
        self.ledger.remove(self.job.group, self.job.request)
        fits = self.ledger.fits(self.job.group, self.job.request)
        self.ledger.add(self.job.group, self.job.request)
        return fits


def _by_group(candidates: list[Candidate]) -> dict[str, list[Candidate]]:
    queues: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        queues.setdefault(candidate.job.group, []).append(candidate)
    return queues
