"""What holds for every cohort and every history: jobs come, run, are evicted and end in any order."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.local.scheduler.decide import decide
from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.scheduler.preemption_backoff import protection_seconds
from cedana_sched.local.scheduler.resources import Limits, Resource
from cedana_sched.local.scheduler.scheduling_types import (
    AdmittedJob,
    ClusterState,
    Cohort,
    Decisions,
    Eviction,
    Group,
    PendingJob,
    PreemptionPolicy,
    ShareStrategy,
)
from cedana_sched.local.scheduler.victim_search import as_pending, victims_for
from tests.unit.local.scheduler.scheduler_builders import ANY, FAIR, cpus

NAMES = ("a", "b", "c")
SIZES = (0.5, 1, 1.5, 2, 3)

policies = st.sampled_from(PreemptionPolicy)
reclaims = st.sampled_from((PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY))
limits = st.builds(
    Limits,
    cpu=st.none() | st.sampled_from((0, 1000, 2000)),
    memory=st.none() | st.sampled_from((100 << 20, 300 << 20)),
)
within = st.sampled_from([p for p in PreemptionPolicy if p is not PreemptionPolicy.ANY])
strategies = st.sampled_from(((), FAIR, (ShareStrategy.LESS_THAN_INITIAL_SHARE,), FAIR[:1]))


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    shares = draw(strategies)
    groups = {
        name: Group(
            name=name,
            nominal=draw(st.builds(cpus, st.sampled_from((0, 1, 2, 4)), st.sampled_from((100, 200, 400)))),
            borrowing_limit=draw(limits),
            lending_limit=draw(limits),
            weight=draw(st.sampled_from((0.0, 0.5, 1.0, 3.0))),
            within_group=draw(within),
            reclaim=draw(reclaims),
            borrow_while_preempting=not shares and draw(st.booleans()),
            max_priority_threshold=draw(st.none() | st.integers(0, 2)),
        )
        for name in NAMES
    }
    return Cohort(groups, shares)


@st.composite
def jobs(draw: st.DrawFn, count: int = 10) -> list[PendingJob]:
    return [
        PendingJob(
            uid=f"j{i}",
            group=draw(st.sampled_from(NAMES)),
            request=cpus(draw(st.sampled_from(SIZES)), draw(st.sampled_from((50, 100, 200)))),
            priority=draw(st.integers(0, 3)),
            submitted_at=float(draw(st.integers(0, 20))),
        )
        for i in range(count)
    ]


class Machine:
    """Applies decisions the way the engine does, with a clock that ticks at every step."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort
        self.time = 100.0
        self.pending: dict[str, PendingJob] = {}
        self.admitted: dict[str, AdmittedJob] = {}
        self.evicted: list[tuple[str, str | None]] = []

    @property
    def state(self) -> ClusterState:
        return ClusterState(self.cohort, tuple(self.pending.values()), tuple(self.admitted.values()))

    def step(self) -> Decisions:
        self.time += 1
        decisions = decide(self.state, self.time)
        for uid in decisions.unneeded:
            self.admitted[uid] = msgspec.structs.replace(self.admitted[uid], eviction=None)
        for uid in decisions.admissions:
            job = self.pending.pop(uid)
            fields = msgspec.structs.asdict(job)
            del fields["claims"]
            times = sum(victim == uid for victim, _ in self.evicted)
            protected_until = self.time + protection_seconds(times)
            self.admitted[uid] = AdmittedJob(**fields, admitted_at=self.time, protected_until=protected_until)
        for preemption in decisions.preemptions:
            victim = self.admitted[preemption.victim]
            assert victim.eviction is None
            eviction = Eviction(preemption.preemptor, revocable=True)
            self.admitted[victim.uid] = msgspec.structs.replace(victim, eviction=eviction)
        for uid, waiting in self.pending.items():
            self.pending[uid] = msgspec.structs.replace(waiting, claims=uid in decisions.claims)
        self.check()
        return decisions

    def finish_eviction(self, uid: str) -> None:
        victim = self.admitted.pop(uid)
        assert victim.eviction is not None
        self.evicted.append((uid, victim.eviction.preemptor))
        self.pending[uid] = as_pending(victim)

    def leaving(self) -> list[str]:
        return sorted(uid for uid, job in self.admitted.items() if job.eviction is not None)

    def settle(self, rounds: int = 40) -> None:
        """Go on, one second a round and nothing ending by itself, until there is nothing left to decide."""
        for _ in range(rounds):
            decisions = self.step()
            leaving = self.leaving()
            for uid in leaving:
                self.finish_eviction(uid)
            if not leaving and not decisions.admissions:
                return
        raise AssertionError(f"still evicting after {rounds} rounds: {self.evicted[-8:]}")

    def check(self) -> None:
        """Never over capacity, never beyond a borrowing limit, nothing lent that is not to be lent."""
        for resource in Resource:
            used = {n: sum(a.request[resource] for a in self.admitted.values() if a.group == n) for n in NAMES}
            assert sum(used.values()) <= sum(g.nominal[resource] for g in self.cohort.groups.values())
            for name, group in self.cohort.groups.items():
                limit = group.borrowing_limit[resource]
                assert limit is None or used[name] <= group.nominal[resource] + limit
                lend = group.lending_limit[resource]
                others = sum(max(0, used[n] - g.nominal[resource]) for n, g in self.cohort.groups.items() if n != name)
                lendable = sum(
                    min(g.nominal[resource], x) if (x := g.lending_limit[resource]) is not None else g.nominal[resource]
                    for n, g in self.cohort.groups.items()
                )
                assert lend is None or others <= lendable


@settings(max_examples=40, deadline=None)
@given(cohorts(), jobs(), st.randoms(use_true_random=False))
def test_no_history_exceeds_quota_and_every_history_comes_to_rest(
    cohort: Cohort, submitted: list[PendingJob], dice: random.Random
) -> None:
    machine = Machine(cohort)
    for job in submitted:
        machine.pending[job.uid] = job
        machine.step()
        for uid in machine.leaving():
            if dice.random() < 0.5:
                machine.finish_eviction(uid)
        ends = [uid for uid, running in machine.admitted.items() if running.eviction is None]
        if ends and dice.random() < 0.2:
            del machine.admitted[dice.choice(sorted(ends))]
    machine.settle()


@settings(max_examples=40, deadline=None)
@given(cohorts(), jobs(8))
def test_a_victim_does_not_take_its_place_back_at_once_from_the_one_that_got_it(
    cohort: Cohort, submitted: list[PendingJob]
) -> None:
    machine = Machine(cohort)
    for job in submitted:
        machine.pending[job.uid] = job
        before: set[tuple[str, str]] = set()
        for _ in range(4):
            preemptions = {(p.victim, p.preemptor) for p in machine.step().preemptions}
            assert not before & {(preemptor, victim) for victim, preemptor in preemptions}
            # of two that preempt in the same cycle, each may change what is fair for the other's victims
            before = preemptions if len({preemptor for _, preemptor in preemptions}) == 1 else set()
            for uid in machine.leaving():
                machine.finish_eviction(uid)


@settings(max_examples=40, deadline=None)
@given(cohorts(), jobs(10))
def test_of_the_victims_none_is_needless(cohort: Cohort, submitted: list[PendingJob]) -> None:
    *running, job = submitted
    machine = Machine(cohort)
    machine.pending = {j.uid: j for j in running}
    machine.settle()
    admitted = sorted(machine.admitted.values(), key=lambda a: a.uid)
    ledger = Ledger(cohort, ((a.group, a.request) for a in admitted))

    victims = {p.victim for p in victims_for(job, admitted, ledger)}

    # where only victims that may not pay for borrowing could be taken, the job stays within its own quota
    own = all(a.group == job.group for a in admitted if a.uid in victims)
    kept = [(a.group, a.request) for a in admitted if a.uid not in victims]
    borrowed = (
        own
        or bool(cohort.share_strategies)
        or cohort.groups[job.group].borrow_while_preempting
        or not Ledger(cohort, kept).within_nominal(job.group, job.request)
    )
    for spared in victims:
        others = [(a.group, a.request) for a in admitted if a.uid not in victims - {spared}]
        assert not Ledger(cohort, others).fits(job.group, job.request, may_borrow=borrowed)


@settings(max_examples=40, deadline=None)
@given(cohorts(), jobs(10))
def test_nominal_quota_can_always_be_reclaimed_where_the_policy_says_any(
    cohort: Cohort, submitted: list[PendingJob]
) -> None:
    groups = {n: msgspec.structs.replace(g, reclaim=ANY) for n, g in cohort.groups.items()}
    *running, job = submitted
    machine = Machine(Cohort(groups, cohort.share_strategies))
    machine.pending = {j.uid: j for j in running}
    machine.settle()
    ledger = Ledger(machine.cohort, ((a.group, a.request) for a in machine.admitted.values()))
    if not ledger.within_nominal(job.group, job.request):
        return
    machine.pending = {job.uid: job}

    decisions = machine.step()

    assert job.uid in decisions.admissions or job.uid in {p.preemptor for p in decisions.preemptions}


@settings(max_examples=40, deadline=None)
@given(cohorts(), jobs(10), st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_are_listed_decides_nothing(
    cohort: Cohort, submitted: list[PendingJob], dice: random.Random
) -> None:
    machine = Machine(cohort)
    machine.pending = {j.uid: j for j in submitted[:5]}
    machine.step()
    machine.pending |= {j.uid: j for j in submitted[5:]}
    state = machine.state
    pending, admitted = list(state.pending), list(state.admitted)
    dice.shuffle(pending)
    dice.shuffle(admitted)

    assert decide(ClusterState(cohort, tuple(pending), tuple(admitted)), 200.0) == decide(state, 200.0)
