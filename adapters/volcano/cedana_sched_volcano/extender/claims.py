"""State kept across scheduling cycles: which pods each preemptor is going to replace.

Volcano calls again in each cycle, for each pending task of the preemptor and each feasible node, in varying order, and
keeps no state. All calls list held pods again. So the first node whose pods can free enough gets the task's **claim**:
these pods are marked, and while they are being saved the task is offered nothing else, neither others' pods nor other
nodes. Otherwise the hold of a protected pod would make the scheduler choose the next one, and then unprotected ones,
which would be evicted in place of pods that precede them.

A claim can be futile: other plugins (for a queue that would fall below its share, say) vote in ways that no call shows,
and a gang takes all its victims or none. Then an offer is not taken. After a while those pods are given up, and the job
pauses before further pods are saved for it, longer each time: no workload is frozen repeatedly for a preemption that
never happens. Evictable pods are offered even then, so that we never delay the scheduler for longer than holds last.

Pure except for the given clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from cedana_sched_volcano.extender.pod_states_interface import Way
from cedana_sched_volcano.extender.selection import (
    Candidate,
    fraction_of_need_freed,
    select_sufficient_candidates,
    sort_in_volcano_order,
    steer_among_equals,
)

FORGOTTEN_SECONDS: Final = 30.0
"""A preemptor without calls for this long is dropped; cycles take a second, and several in large clusters."""
PATIENT_ROUNDS: Final = 10
LONGEST_PATIENT_ROUNDS: Final = 45
"""Rounds in which an offer may be ignored before it is given up: three for each evictee of the node, in these bounds.
Several, because which of equal pods `proportion` allows changes with the order of a Go map; and less than the minute
for which a release is valid."""
BARREN_ROUNDS: Final = 3
"""Rounds without a node whose pods free enough, until the closest node is tried with all of its pods: other free
resources, which no call shows, may suffice. Scaled up by how much is missing; and once per job in
`LONGEST_PAUSE_SECONDS`, because it can freeze a node's pods for nothing. Not done if the node has free
resources."""
FIRST_PAUSE_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 600.0
ANEW_SECONDS: Final = 2 * LONGEST_PAUSE_SECONDS
"""After the last give-up, until all given-up pods are considered again: other plugins may allow them by then. Longer
than a pause, so that untried pods are tried first."""

Word = Literal["nothing-of-ours", "not-needed", "not-enough", "held", "elsewhere", "offered", "given-up", "paused"]
"""Reason: no pod here is protected; unprotected pods come first; all together are too few; pods are being saved, here
or elsewhere; all claimed pods may be evicted; the offer was not taken; the job pauses after that."""


class Preemptor(msgspec.Struct, frozen=True):
    """A pending task of a preemptor: `job` is its `namespace/podgroup`, `need` what must be free for it."""

    uid: str
    job: str
    need: Mapping[str, float]


class Place(NamedTuple):
    """Subject of one call. `within`: victims of the preemptor's own job, for which Volcano makes separate calls."""

    way: Way
    node: str
    within: bool


class Decision(msgspec.Struct, frozen=True):
    """Pods that may be evicted now, wanted pods, and a metric label."""

    word: Word
    allowed: frozenset[str] = frozenset()
    requested: tuple[str, ...] = ()


class _Claim(msgspec.Struct):
    place: Place
    uids: tuple[str, ...]
    jobs: frozenset[str]
    offered: bool
    """Whether all of them may be evicted."""
    short: bool
    """Whether all pods of the place together may free too little; see `BARREN_ROUNDS`."""
    uses: Mapping[str, float]
    """What it needs of the node's free resources besides its pods."""


class _PendingTask(msgspec.Struct):
    """One pending task. A round ends with its second call about a place."""

    seen: dict[Place, float] = {}
    """Places of this round, with the fraction of the need that their pods free, from 0 to 1; infinity if enough."""
    closest: Place | None = None
    """Of the previous round."""
    barren: int = 0
    vain: dict[Place, int] = {}
    claim: _Claim | None = None
    at: float = 0.0
    began: float = 0.0
    """Start of its round."""
    began_before: float = 0.0
    """Start of the previous round."""


class _PreemptorJob(msgspec.Struct):
    tasks: dict[str, _PendingTask] = {}
    given_up: set[str] = set()
    given_up_until: float = 0.0
    pauses: int = 0
    paused_until: float = 0.0
    short_until: float = 0.0
    """Time until which no insufficient place is tried."""

    @property
    def is_waiting_for_saves(self) -> bool:
        """Whether pods are still being saved for one of its tasks: then a gang can take no other offer."""
        return any(one.claim is not None and not one.claim.offered for one in self.tasks.values())

    @property
    def jobs_losing_members(self) -> frozenset[str]:
        """Jobs that lose a member to it."""
        return frozenset(name for one in self.tasks.values() if one.claim is not None for name in one.claim.jobs)

    def resources_left(self, free: Mapping[str, float], task: _PendingTask, node: str) -> Mapping[str, float]:
        """Return the node's free resources minus the use of its other active tasks: a gang gets them only once."""
        left = dict(free)
        others = [one for one in self.tasks.values() if one is not task and one.at >= task.began_before]
        for claim in (one.claim for one in others):
            if claim is not None and claim.place.node == node:
                for name, amount in claim.uses.items():
                    left[name] = left.get(name, 0.0) - amount
        return left


class Claims:
    """Claims of all active preemptors.

    Args:
        clock: monotonic seconds.
        steering: whether equal victims are chosen by what they have to lose.
    """

    def __init__(self, clock: Callable[[], float], *, steering: bool = False) -> None:
        self._clock = clock
        self._steering = steering
        self._jobs: dict[str, _PreemptorJob] = {}
        self._claimed: dict[str, set[str]] = {}
        """By pod: tasks that claim it."""
        self._swept = clock()

    def count_active_preemptors(self) -> int:
        """Return the number of active preemptors."""
        self._drop_inactive_preemptors(self._clock())
        return sum(len(job.tasks) for job in self._jobs.values())

    def decide_evictions(
        self,
        preemptor: Preemptor,
        place: Place,
        candidates: Sequence[Candidate],
        free: Mapping[str, float] | None = None,
    ) -> Decision:
        """Answer one call: which of `candidates`, all evictable pods of the place, may be evicted now."""
        now = self._clock()
        self._drop_inactive_preemptors(now)
        job = self._jobs.setdefault(preemptor.job, _PreemptorJob())
        task = job.tasks.setdefault(preemptor.uid, _PendingTask())
        task.at = now
        self._begin_round(preemptor, task, place)
        going = frozenset(one.uid for one in candidates if one.is_evictable)
        if now >= job.given_up_until:
            job.given_up.clear()
        if now < job.paused_until:
            self._replace_claim(preemptor, task, None)
            return Decision("paused", going)
        if task.claim is not None and task.claim.place != place:
            return Decision("elsewhere")
        if all(one.standing is None for one in candidates):
            return Decision("nothing-of-ours", going)
        return self._decide_with_protected(preemptor, job, task, place, candidates, free)

    def _decide_with_protected(
        self,
        preemptor: Preemptor,
        job: _PreemptorJob,
        task: _PendingTask,
        place: Place,
        candidates: Sequence[Candidate],
        free: Mapping[str, float] | None,
    ) -> Decision:
        """Answer a call about a place with protected pods."""
        going = frozenset(one.uid for one in candidates if one.is_evictable)
        if free is not None:
            free = job.resources_left(free, task, place.node)
        ordered = self._order_candidates(preemptor, job, task.claim, candidates)
        chosen = select_sufficient_candidates(ordered, preemptor.need, free)
        short = chosen is None
        if chosen is None and free is None and self._is_worth_trying(preemptor, job, task, place, ordered):
            chosen = tuple(ordered)
        if chosen is None:
            self._replace_claim(preemptor, task, None)
            return Decision("not-enough", going)
        if not short:
            task.seen[place] = math.inf
        offered = all(one.is_evictable for one in chosen)
        protected = tuple(one.uid for one in chosen if one.standing is not None)
        self._replace_claim(preemptor, task, _build_claim(chosen, place, preemptor, short=short) if protected else None)
        if offered and not job.is_waiting_for_saves and self._is_patience_exhausted(task, place, len(candidates)):
            self._give_up_claim(preemptor, job, task, chosen)
            return Decision("given-up", going)
        if not protected:
            return Decision("not-needed", going)
        allowed = frozenset(one.uid for one in chosen if one.is_evictable)
        return Decision("offered" if offered else "held", allowed, protected)

    def _begin_round(self, preemptor: Preemptor, task: _PendingTask, place: Place) -> None:
        if place not in task.seen:
            task.seen[place] = 0.0
            return
        task.began, task.began_before = task.at, task.began
        if task.claim is not None and task.claim.place not in task.seen:
            self._replace_claim(preemptor, task, None)  # the scheduler no longer considers that place
        task.vain = {one: rounds for one, rounds in task.vain.items() if one in task.seen}
        task.barren = task.barren + 1 if task.claim is None else 0
        task.closest = max(task.seen, key=lambda one: task.seen[one])
        task.seen = {place: 0.0}

    def _order_candidates(
        self, preemptor: Preemptor, job: _PreemptorJob, claim: _Claim | None, candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        """Order candidates: own claim first, then Volcano's order, then pods that others claim."""
        mine = frozenset(claim.uids if claim is not None else ())
        usable = [one for one in candidates if one.uid not in job.given_up and not one.is_to_stay]
        ordered = sort_in_volcano_order(usable)
        if self._steering:
            ordered = steer_among_equals(ordered, broken=job.jobs_losing_members)

        def rank(one: Candidate) -> tuple[int, int, bool]:
            others = self._claimed.get(one.uid, set()) - {preemptor.uid}
            return 0 if one.uid in mine else 2 if others else 1, one.priority, not one.is_being_saved

        ordered.sort(key=rank)
        return ordered

    def _is_worth_trying(
        self, preemptor: Preemptor, job: _PreemptorJob, task: _PendingTask, place: Place, ordered: list[Candidate]
    ) -> bool:
        """Whether to try all pods of the place, although they may not be enough."""
        task.seen[place] = covered = fraction_of_need_freed(ordered, preemptor.need)
        if task.claim is not None:
            return task.claim.short
        patient = task.barren * covered >= BARREN_ROUNDS and self._clock() >= job.short_until
        return patient and place == task.closest

    def _is_patience_exhausted(self, task: _PendingTask, place: Place, evictees: int) -> bool:
        task.vain[place] = task.vain.get(place, 0) + 1
        return task.vain[place] > min(max(PATIENT_ROUNDS, 3 * evictees), LONGEST_PATIENT_ROUNDS)

    def _give_up_claim(
        self, preemptor: Preemptor, job: _PreemptorJob, task: _PendingTask, chosen: tuple[Candidate, ...]
    ) -> None:
        job.given_up.update(one.uid for one in chosen)
        job.given_up_until = self._clock() + ANEW_SECONDS
        if task.claim is not None and task.claim.short:
            job.short_until = self._clock() + LONGEST_PAUSE_SECONDS
        self._replace_claim(preemptor, task, None)
        task.vain.clear()
        if any(one.standing is not None for one in chosen):
            pause = min(FIRST_PAUSE_SECONDS * 2**job.pauses, LONGEST_PAUSE_SECONDS)
            job.paused_until = self._clock() + pause
            job.pauses += 1

    def _replace_claim(self, preemptor: Preemptor, task: _PendingTask, claim: _Claim | None) -> None:
        for uid in task.claim.uids if task.claim is not None else ():
            if claimants := self._claimed.get(uid):
                claimants.discard(preemptor.uid)
                if not claimants:
                    del self._claimed[uid]
        task.claim = claim
        for uid in claim.uids if claim is not None else ():
            self._claimed.setdefault(uid, set()).add(preemptor.uid)

    def _drop_inactive_preemptors(self, now: float) -> None:
        """Drop inactive preemptors; runs only every few seconds."""
        if now - self._swept < FORGOTTEN_SECONDS / 3:
            return
        self._swept = now
        for name, job in list(self._jobs.items()):
            for uid, task in list(job.tasks.items()):
                if now - task.at > FORGOTTEN_SECONDS:
                    self._replace_claim(Preemptor(uid, name, {}), task, None)
                    del job.tasks[uid]
            if not job.tasks:
                del self._jobs[name]


def _build_claim(chosen: Sequence[Candidate], place: Place, preemptor: Preemptor, *, short: bool) -> _Claim:
    made = Counter[str]()
    for one in chosen:
        made.update(one.amounts)
    return _Claim(
        place,
        tuple(one.uid for one in chosen),
        frozenset(one.job for one in chosen),
        all(one.is_evictable for one in chosen),
        short,
        {name: amount - made[name] for name, amount in preemptor.need.items() if amount > made[name]},
    )
