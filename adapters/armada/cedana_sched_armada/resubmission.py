"""Resubmits a preempted job, once: Armada itself never does.

Armada is authoritative for whether that happened. The new job's client id derives from the old job's id, and Armada
answers a known client id with the existing job. But Armada registers a client id only after it has created the job, and
not at all if its database fails; so before a submission with unknown outcome is repeated, we wait until the job set's
stream must show it, and read the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from textwrap import shorten
from weakref import WeakValueDictionary

import msgspec
import structlog
from armada_client.armada.submit_pb2 import Job
from msgspec.structs import replace

from cedana_sched.adapter.cluster_contract import Snapshots
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.errors import ArmadaError, ArmadaUnavailableError
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.job_history_queries import fetch_submissions_of_jobs, gang_members, preempted_since
from cedana_sched_armada.job_of_pod import CARDINALITY, Gang, gang_id, number_in_annotation
from cedana_sched_armada.ledger import AwaitedJob, Ledger, Member, OpenPreemption
from cedana_sched_armada.refused_resubmissions import RefusedResubmissions
from cedana_sched_armada.settings import ArmadaSettings
from cedana_sched_armada.successor import (
    NewGang,
    build_successor_submission,
    checkpoint_id_of,
    is_snapshot_expected,
    next_gang,
    resubmission_number_of,
)

log = structlog.get_logger(__name__)

MOST_CHARACTERS = 400
"""Limit of Armada's message in an Event."""
LONGEST_DOUBT_SECONDS = 3600.0
"""Maximum delay of Armada's events; later a job whose end no event explains is not waited for any longer. Time in
which Armada does not answer does not count."""


class Outcome(msgspec.Struct, frozen=True):
    """How a preemption ended: successors by old job, or why there are none."""

    successors: Mapping[str, str] = {}
    why_none: str = ""
    given_up: bool = False
    """Armada has refused for so long that a user must resubmit the jobs, if wanted."""


class _ResubmissionPlan(msgspec.Struct, frozen=True):
    """What to resubmit: our members, all jobs, and the number of consecutive resubmissions."""

    members: tuple[Member, ...]
    jobs: Mapping[str, Job]
    gang: NewGang | None
    number: int


class _NotResubmittedError(Exception):
    """Nothing is resubmitted; has the reason."""


class Resubmitter:
    """Ends preemptions.

    Args:
        server: Armada's.
        ledger: open preemptions.
        settings: limits and backoff.
        snapshots: restorable ones.
        catch_up: processes all events that Armada has of a job set now.
        on_ended: called with how each preemption ended.
        on_refused: called, rate-limited, with what keeps one open.
        clock: seconds since the epoch.
        sleep: for so many seconds.
    """

    def __init__(
        self,
        server: ArmadaClient,
        ledger: Ledger,
        settings: ArmadaSettings,
        snapshots: Snapshots,
        catch_up: Callable[[JobSet], Awaitable[None]],
        on_ended: Callable[[OpenPreemption, Outcome], None],
        on_refused: Callable[[OpenPreemption, ArmadaError], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._ledger = ledger
        self._settings = settings
        self._snapshots = snapshots
        self._catch_up = catch_up
        self._on_ended = on_ended
        self._clock = clock
        self._sleep = sleep
        self._refusals = RefusedResubmissions(on_refused, clock, sleep, settings.limits.give_up_seconds)
        self._locks: WeakValueDictionary[JobSet, asyncio.Lock] = WeakValueDictionary()

    async def conclude_preemption(self, uid: str, verdicts: Mapping[str, Verdict]) -> None:
        """End a preemption: resubmit its jobs, and drop it. Idempotent: continues earlier attempts.

        Args:
            uid: of the preemption; one that is not open has already ended.
            verdicts: the coordinator's, by uid of the pod; empty if the coordinator has no signal of it.

        Raises:
            ArmadaError: the outcome is unknown, or a user must act first.
        """
        case = self._ledger.cases.get(uid)
        if case is None:
            return
        try:
            outcome = await self._resubmit_or_withdraw(case, verdicts)
        except ArmadaError as error:
            if not await self._refusals.back_off_or_give_up(self._current_case(case), error):
                raise
            made = self._current_case(case).successors
            for job in made.values():
                self._ledger.awaited.pop(job, None)
            problem = shorten(str(error), MOST_CHARACTERS)  # an Event must have room for the rest of the text
            outcome = Outcome(made, f"it is given up, because Armada keeps refusing: {problem}", given_up=True)
        case = self._current_case(case)
        self._refusals.forget_preemption(uid)
        self._ledger.drop_case(uid)
        await self._ledger.wait_until_persisted()
        self._on_ended(case, outcome)

    async def _resubmit_or_withdraw(self, case: OpenPreemption, verdicts: Mapping[str, Verdict]) -> Outcome:
        made: Mapping[str, str] = {}
        try:
            made = await self._resubmit(case, verdicts)
            self._check_no_cancellation(case)  # cancelled during the submission
        except _NotResubmittedError as reason:
            await self._cancel_submitted_jobs(case, made)
            return Outcome(why_none=str(reason))
        return Outcome(made)

    async def _resubmit(self, case: OpenPreemption, verdicts: Mapping[str, Verdict]) -> Mapping[str, str]:
        await self._check_preempted(case)
        working = tuple(member for member in case.members if not member.pod_uid or member.pod_uid not in case.finished)
        if not working:
            raise _NotResubmittedError("it has finished its work")
        back = await self._plan_resubmission(case, working, verdicts)
        await self._wait_until(max(self._resubmission_time(case, back.number), self._attempt_visible_at(case)), case)
        # Armada does not deduplicate concurrent submissions
        async with self._locks.setdefault(case.job_set, asyncio.Lock()):
            await self._catch_up(case.job_set)
            seen = self._current_case(case).successors
            successors = {job: seen[job] for job in back.jobs if job in seen}
            if len(successors) < len(back.jobs):
                self._check_no_cancellation(case)
                successors |= await self._submit_successors(case, back, successors)
        shown = self._current_case(case).successors
        for member in back.members:
            if member.job not in shown:  # from now on this adapter ends its preemption, until it has a pod
                awaited = AwaitedJob(case.job_set, member.namespace, member.id, member.index)
                self._ledger.awaited[successors[member.job]] = awaited
        return successors

    def _current_case(self, case: OpenPreemption) -> OpenPreemption:
        """Return the current case: events change it."""
        return self._ledger.cases.get(case.uid, case)

    async def _check_preempted(self, case: OpenPreemption) -> None:
        """Require that it was preempted: not cancelled, nor ended by Armada without an explaining event."""
        if self._current_case(case).doubtful:
            await self._catch_up(case.job_set)
        self._check_no_cancellation(case)
        if not self._current_case(case).doubtful:
            return
        if self._clock() - case.at > LONGEST_DOUBT_SECONDS:
            raise _NotResubmittedError("Armada does not say that it was preempted")
        message = f"Armada has not said yet why it has ended job {case.job}"
        raise ArmadaUnavailableError(message, remedy="the call is retried")

    def _check_no_cancellation(self, case: OpenPreemption) -> None:
        if why := self._current_case(case).cancelled:
            raise _NotResubmittedError(why)

    def _check_snapshots_exist(
        self, members: Iterable[Member], jobs: Mapping[str, Job], verdicts: Mapping[str, Verdict]
    ) -> None:
        """Require a restorable snapshot; for a gang, one of each member."""
        for member in members:
            saved = verdicts.get(member.pod_uid) is Verdict.COMMITTED or is_snapshot_expected(jobs[member.job])
            if not saved and not self._has_snapshot(member):
                raise _NotResubmittedError(f"there is no snapshot of {member.namespace}/{member.id}/{member.index}")

    def _has_snapshot(self, member: Member) -> bool:
        known = self._snapshots.snapshots_of(member.namespace, member.id)
        return any(one.identity.index == member.index for one in known)

    async def _plan_resubmission(
        self, case: OpenPreemption, members: tuple[Member, ...], verdicts: Mapping[str, Verdict]
    ) -> _ResubmissionPlan:
        members, jobs = await self._original_submissions(case, members)
        ids = set(jobs)
        # a member preempted without a coordinator is identified by its submission
        members = tuple(_with_identity(member, jobs[member.job]) for member in members)
        self._check_snapshots_exist(members, jobs, verdicts)
        gang = None
        first = jobs[case.job] if case.job in jobs else jobs[min(jobs)]
        identifier = gang_id(dict(first.annotations))
        if identifier is not None:
            named = Gang(case.job_set.queue, identifier)
            jobs |= await self._other_gang_members(case, named, first, ids)
            gang = next_gang(named, case.job, len(jobs))
        number = max(self._next_resubmission_number(case, member, jobs[member.job]) for member in members)
        if number > self._settings.limits.resubmissions:
            limit = self._settings.limits.resubmissions
            raise _NotResubmittedError(
                f"it was preempted again and again: {limit} resubmissions in a row are the limit"
            )
        return _ResubmissionPlan(members, jobs, gang, number)

    async def _original_submissions(
        self, case: OpenPreemption, members: tuple[Member, ...]
    ) -> tuple[tuple[Member, ...], dict[str, Job]]:
        """Return the submissions of its members, without members known only from a pod's labels.

        Raises:
            _NoReturnError: all members are of that kind.
            ArmadaError: Armada no longer has one of them.
        """
        known = await fetch_submissions_of_jobs(self._server, case.job_set, {case.job})
        namespace = known[case.job].namespace
        there = [member for member in members if not member.is_known_here or member.namespace == namespace]
        if strangers := {member.job for member in there} - known.keys():
            known |= await fetch_submissions_of_jobs(self._server, case.job_set, strangers)
        own = tuple(member for member in there if known[member.job].namespace == namespace)
        if not own:
            raise _NotResubmittedError(f"no pod of it was in its namespace, which is {namespace}")
        return own, {member.job: known[member.job] for member in own}

    async def _other_gang_members(self, case: OpenPreemption, gang: Gang, first: Job, ours: set[str]) -> dict[str, Job]:
        """Return the rest of a gang: also preempted, but unprotected, or without a pod yet. They start cold."""
        cardinality = number_in_annotation(first.annotations, CARDINALITY)
        if len(ours) >= cardinality:
            return {}
        others = await gang_members(self._server, case.job_set, gang, first.id, cardinality) - ours
        preempted = await preempted_since(self._server, case) & others
        self._ledger.put_case(replace(self._current_case(case), others=tuple(sorted(preempted))))
        log.warning("gang members begin anew", gang=gang.id, preemption=case.uid, jobs=sorted(preempted))
        return await fetch_submissions_of_jobs(self._server, case.job_set, preempted) if preempted else {}

    def _next_resubmission_number(self, case: OpenPreemption, member: Member, job: Job) -> int:
        fresh = (
            member.started_at is not None and case.at - member.started_at >= self._settings.limits.fresh_after_seconds
        )
        return 1 if fresh else resubmission_number_of(job) + 1

    def _resubmission_time(self, case: OpenPreemption, number: int) -> float:
        """Return the time of resubmission, with backoff. A job without a pod here may be another cluster's to save."""
        pause = self._settings.limits.resubmission_pause_seconds(number)
        unseen = any(not member.is_known_here for member in case.members)
        return case.at + (max(pause, self._settings.hold_seconds) if unseen else pause)

    def _attempt_visible_at(self, case: OpenPreemption) -> float:
        """Return when an attempt with unknown outcome must be visible."""
        since = self._current_case(case).submitting_since
        return 0.0 if since is None else since + self._settings.settle_seconds

    async def _wait_until(self, at: float, case: OpenPreemption) -> None:
        pause = at - self._clock()
        if pause > 0:
            log.info("resubmission waits", preemption=case.uid, pause_seconds=round(pause, 1))
            await self._sleep(pause)

    async def _cancel_submitted_jobs(self, case: OpenPreemption, made: Mapping[str, str]) -> None:
        """Cancel jobs of an attempt made before it was known that nothing is resubmitted."""
        now = self._current_case(case)
        if now.submitting_since is None and not now.successors:
            return
        if not made:
            await self._wait_until(self._attempt_visible_at(case), case)
            await self._catch_up(case.job_set)
        for job in {*made.values(), *self._current_case(case).successors.values()}:
            await self._server.cancel(case.job_set, job, "cedana-sched: its predecessor is not submitted again")
            self._ledger.awaited.pop(job, None)

    async def _submit_successors(
        self, case: OpenPreemption, back: _ResubmissionPlan, there: Mapping[str, str]
    ) -> dict[str, str]:
        ids = {member.job: member.id for member in back.members}
        items = {
            job: build_successor_submission(kept, ids.get(job), back.number, back.gang)
            for job, kept in back.jobs.items()
            if job not in there
        }
        self._record_submission_time(case, self._clock())
        await self._ledger.wait_until_persisted()
        self._check_no_cancellation(case)
        try:
            made = await self._server.submit(case.job_set, list(items.values()))
        except ArmadaError as error:
            if not error.undecided:
                self._record_submission_time(case, None)
            raise
        return dict(zip(items, made, strict=True))

    def _record_submission_time(self, case: OpenPreemption, since: float | None) -> None:
        self._ledger.put_case(replace(self._current_case(case), submitting_since=since))


def _with_identity(member: Member, job: Job) -> Member:
    return member if member.id else replace(member, namespace=job.namespace, id=checkpoint_id_of(job))


def manual_resubmission_hint(member: Member, snapshots: Snapshots) -> str:
    """Return how a user resubmits a job that was given up; the end of a sentence."""
    known = snapshots.snapshots_of(member.namespace, member.id) if member.id else ()
    newest = max((one for one in known if one.identity.index == member.index), default=None)
    if newest is None:
        return ""
    return (
        f"; to continue its snapshot {newest}, submit the job again, in namespace {member.namespace}, with the"
        f" annotations {names.ID}: {member.id} and {names.EXPECT_SNAPSHOT}: 'true'"
    )
