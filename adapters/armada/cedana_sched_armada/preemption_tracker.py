"""Armada's preemptions of our jobs, from events and the cache of pods, as reports: no I/O.

A preempted job is terminal in Armada before its pod is touched, and Armada never restarts it. So a preemption is open
from its event until the job was resubmitted, or left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from cedana_sched.adapter.cluster_contract import Policies
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.preemption import Signal
from cedana_sched_armada.events import JobEvent, JobSet, Kind, event_id_at, submission_time_of_job
from cedana_sched_armada.job_of_pod import job_of, job_set_of, queue_of
from cedana_sched_armada.job_pod_index import JobPodIndex
from cedana_sched_armada.ledger import AwaitedJob, Ledger, Member, OpenPreemption
from cedana_sched_armada.settings import ArmadaSettings
from cedana_sched_armada.signals import member_from_pod, signal_of
from cedana_sched_armada.successor import checkpoint_id_of, predecessor_by_client_id

log = structlog.get_logger(__name__)

REMEMBERED = 10_000
"""Limit of tracked successors, to detect a second one, and of preempted jobs whose pod may show yet: both take
minutes."""
MOST_DOUBTS = 1_000
"""Maximum concurrent ones per namespace: tenants who create pods determine their number."""

ArmadaReport = Preempted | PreemptionCancelled


class Effects(Protocol):
    """Effects of an event. None of them blocks."""

    def report(self, report: ArmadaReport) -> None:
        """Report to the coordinator."""

    def start_unreported_conclusion(self, uid: str) -> None:
        """End a preemption that the coordinator has no signal of."""

    def cancel_surplus_job(self, job_set: JobSet, job: str) -> None:
        """Cancel a job: another one already replaces the same job."""

    def start_namespace_lookup(self, job_set: JobSet, event: JobEvent) -> None:
        """Look up the namespace of a preempted job's submission, and call `PreemptionTracker.on_namespace_found`."""


class PreemptionTracker:
    """Processes events one at a time.

    Args:
        pods: protected ones.
        ledger: open preemptions.
        policies: of the cluster.
        settings: queues and hold duration.
        clock: seconds since the epoch.
        effects: called for each event's effects.
    """

    def __init__(
        self,
        pods: JobPodIndex,
        ledger: Ledger,
        policies: Policies,
        settings: ArmadaSettings,
        clock: Callable[[], float],
        effects: Effects,
    ) -> None:
        self._pods = pods
        self._ledger = ledger
        self._policies = policies
        self._settings = settings
        self._clock = clock
        self._effects = effects
        self._signals: dict[str, Signal] = {}
        """By uid of the case: as it was reported first, since a pod may be gone by the next report."""
        self._successors: dict[tuple[JobSet, str], str] = {}
        """By job set and client id of ours: the first job that Armada created for it."""
        self._unseen: dict[str, tuple[JobSet, JobEvent]] = {}
        """By id: preempted jobs without a cached pod: another cluster's, or the watch of pods is stale."""
        self._without_room: dict[str, deque[tuple[str, str]]] = {}
        """By namespace: jobs and pod uids of unexplained deletions that wait because of `MOST_DOUBTS`."""
        ledger.on_doubt_over = self._open_waiting_case

    def process_event(self, job_set: JobSet, event: JobEvent, *, missed: bool) -> None:
        """Process one event; `missed`: a pod of its job may have been here. Idempotent."""
        match event.kind:
            case Kind.PREEMPTED:
                self._on_job_preemption(job_set, event, missed=missed)
            case Kind.CANCEL_REQUESTED:
                self._on_job_cancellation(event.job, "the job was cancelled")
            case Kind.SET_CANCELLED:
                self._on_set_cancellation(job_set)
            case Kind.CANCELLED | Kind.OVER:
                self._on_job_end(event.job)
            case Kind.RETURNED:
                self._on_job_end(event.job, event.pod)
            case Kind.RUNNING:
                self._record_pod_arrival(event.job)  # here, or in another cluster, whose coordinator then tracks it
            case Kind.SUBMITTED:
                self._on_job_submission(job_set, event)

    def on_namespace_found(self, job_set: JobSet, event: JobEvent, namespace: str) -> None:
        """Continue with the namespace of the preempted job's submission; pods elsewhere only claim to be its."""
        if self._unseen.pop(event.job, None) is not None:
            self._on_job_preemption(job_set, event, missed=False, namespaces=frozenset({namespace}))

    def _record_pod_arrival(self, job: str, namespace: str = "") -> None:
        """Record that a job has a pod in this namespace; empty: according to Armada."""
        awaited = self._ledger.awaited.get(job)
        if awaited is not None and namespace in {"", awaited.namespace}:
            del self._ledger.awaited[job]
            self._ledger.schedule_write()

    def on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        """Sink of an informer: a deleted victim has a deadline from then on, which `hold_deadline` returns."""
        if before is not None and (now is None or now.metadata.uid != before.metadata.uid):
            self._pods.forget_pod(before.metadata.uid)
        job = job_of(now) if now is not None else None
        if now is None or job is None:
            return
        if not self._settings.opts_in(queue_of(now)):
            if now.metadata.deletion_timestamp is not None:  # its preStop hook waits, and its events are not watched
                self._pods.release_pod(now)
            return
        self._record_pod_arrival(job, now.metadata.namespace)
        if (unseen := self._unseen.pop(job, None)) is not None:
            self._on_job_preemption(*unseen, missed=False)
        case, uid = self._case_with(job, (now,)), now.metadata.uid
        if case is None:
            return
        if now.status.phase == "Succeeded" and uid not in case.finished:
            case = replace(case, finished=(*case.finished, uid))
            self._ledger.put_case(case)
        deleted = now.metadata.deletion_timestamp
        if deleted is not None and (before is None or before.metadata.deletion_timestamp != deleted):
            self._report_again(case)

    def _report_again(self, case: OpenPreemption) -> None:
        """Make the coordinator query the hold's deadline again."""
        if (signal := self._signals.get(case.uid)) is not None:
            self._effects.report(Preempted(signal))

    def hold_deadline(self, uid: str) -> float | None:
        """Return the earliest deadline of its victims; None if the preemption is not open."""
        case = self._ledger.cases.get(uid)
        if case is None:
            return None
        victims = {member.pod_uid for member in case.members if member.runs}
        pods = (pod for member in case.members for pod in self._pods.pods_of(member.job) if pod.metadata.uid in victims)
        ends = (pod.metadata.deletion_deadline for pod in pods)
        return min([case.not_after, *(end for end in ends if end is not None)])

    def stop_reporting(self, uid: str) -> None:
        """Stop reporting it."""
        self._signals.pop(uid, None)

    def pending_reports(self) -> tuple[ArmadaReport, ...]:
        """Return reports of all open preemptions that were reported."""
        cases = self._ledger.cases.values()
        return tuple(one for case in cases if case.uid in self._signals for one in self._reports_of(case))

    def _reports_of(self, case: OpenPreemption) -> Iterable[ArmadaReport]:
        yield Preempted(self._signals[case.uid])
        if case.cancelled:
            yield PreemptionCancelled(case.uid, case.cancelled)

    def resume_recorded_preemptions(self) -> None:
        """Report or conclude what an earlier coordinator recorded."""
        for case in tuple(self._ledger.cases.values()):
            self._on_case_persisted(case)

    def open_doubtful_case(self, job: str, uid: str) -> None:
        """Open a case for a deletion that no event explains: what can be saved is saved."""
        doubtful = self._pods.pod_of(job, uid)
        namespace = doubtful.metadata.namespace if doubtful is not None else ""
        if self._ledger.doubtful[namespace] >= MOST_DOUBTS:
            log.warning("too many deletions that armada does not explain: a pod waits", namespace=namespace, job=job)
            self._without_room.setdefault(namespace, deque(maxlen=MOST_DOUBTS)).append((job, uid))
            return
        pods, gang = self._pods.pods_with_gang(job, namespace)
        members = {pod.metadata.uid: member_from_pod(pod) for pod in pods if pod.metadata.deletion_timestamp}
        own, job_set = members.get(uid), job_set_of(pods[0]) if pods else None
        explained = self._pods.is_released(uid) or self._case_with(job, pods) is not None
        if own is None or job_set is None or explained or not self._settings.opts_in(job_set.queue):
            return
        if len(members) < len(pods) or not own.runs:  # Armada preempts a gang as a whole
            return
        log.warning("pod is deleted and Armada does not say why: it is saved", job=job, job_set=str(job_set))
        now = self._clock()
        self._open_case(
            OpenPreemption(
                uid=f"{job}@{uid}",  # a run known only from its pod
                job_set=job_set,
                since=self._ledger.streams.get(job_set) or event_id_at(submission_time_of_job(job)),
                job=job,
                members=tuple(member for member in members.values() if member is not None),
                at=now,
                observed_at=now,
                not_after=now + self._settings.hold_seconds,
                reason="DeletionUnexplained",
                gang=gang,
                doubtful=True,
            )
        )

    def _open_waiting_case(self, namespace: str) -> None:
        """Open a waiting case, now below the limit."""
        waiting = self._without_room.get(namespace, deque())
        while waiting and self._ledger.doubtful[namespace] < MOST_DOUBTS:
            self.open_doubtful_case(*waiting.popleft())
        if not waiting:
            self._without_room.pop(namespace, None)

    def _on_job_preemption(
        self, job_set: JobSet, event: JobEvent, *, missed: bool, namespaces: frozenset[str] | None = None
    ) -> None:
        """Process a preemption. `namespaces`: where its pods may be; None: where pods are labelled with its run."""
        if not self._settings.opts_in(job_set.queue):
            return
        if namespaces is None:
            namespaces = self._pods.namespaces_of(event.job, event.run)
        if len(namespaces) > 1:
            self._remember_unseen_event(job_set, event)
            self._effects.start_namespace_lookup(job_set, event)
            return
        pods, gang = self._pods.pods_with_gang(event.job, next(iter(namespaces), ""))
        if (known := self._case_with(event.job, pods, event.run)) is not None:
            if known.doubtful:
                self._ledger.put_case(replace(known, doubtful=False, at=event.at))
            return
        members = self._build_members(event, pods, missed=missed)
        if not members:
            if not pods:
                self._remember_unseen_event(job_set, event)
            return
        now = self._clock()
        case = OpenPreemption(
            uid=f"{event.job}@{event.run}",
            job_set=job_set,
            since=event.id,
            job=event.job,
            members=tuple(members),
            at=event.at,
            observed_at=now,
            not_after=now + self._settings.hold_seconds,
            reason="Preempted" if event.preemptor else "PreemptionRequested",
            preemptor=event.preemptor,
            gang=gang,
        )
        log.info("preempted", preemption=case.uid, queue=job_set.queue, job_set=job_set.name, reason=event.reason)
        self._open_case(case)

    def _build_members(self, event: JobEvent, pods: Collection[Pod], *, missed: bool) -> list[Member]:
        """Return members of a preempted job or gang: from pods, else from our resubmission, else as unseen."""
        awaited = self._ledger.awaited.pop(event.job, None)
        if pods:
            left = (pod for pod in pods if pod.status.phase != "Succeeded")
            return [member for member in map(member_from_pod, left) if member is not None]
        if awaited is not None:
            return [Member(event.job, event.run, awaited.namespace, awaited.id, awaited.index)]
        return [Member(event.job, event.run)] if missed else []

    def _case_with(self, job: str, pods: Collection[Pod], run: str = "") -> OpenPreemption | None:
        """Return the open preemption of a job with one of these pods, or without a recorded pod.

        Without pods: the one with the job as a member by this run, or with it among `others`.
        """
        uids = {pod.metadata.uid for pod in pods}

        def is_about(member: Member) -> bool:
            if not pods:
                return member.job == job and member.run == run
            return member.pod_uid in uids or (member.job == job and not member.pod_uid)

        cases = self._ledger.cases_with(job)
        return next((one for one in cases if job in one.others or any(map(is_about, one.members))), None)

    def _remember_unseen_event(self, job_set: JobSet, event: JobEvent) -> None:
        self._unseen[event.job] = job_set, event
        _limit_entries(self._unseen)

    def _open_case(self, case: OpenPreemption) -> None:
        self._ledger.put_case(case, lambda: self._on_case_persisted(case))

    def _on_case_persisted(self, case: OpenPreemption) -> None:
        if case.has_state_to_save:
            if case.uid not in self._signals:
                self._signals[case.uid] = signal_of(case, self._policies, self._find_pod)
            for report in self._reports_of(case):
                self._effects.report(report)
        else:
            self._effects.start_unreported_conclusion(case.uid)
        for member in case.members:
            if not member.runs:
                self._pods.release_job_pods(member.job, namespace=member.namespace)

    def _find_pod(self, member: Member) -> Pod | None:
        return self._pods.pod_of(member.job, member.pod_uid)

    def _on_job_end(self, job: str, pod_uid: str = "") -> None:
        """Process a job's end. `pod_uid`: of the ended run; after a late event the job may have another run by now."""
        self._record_pod_arrival(job)
        cases = self._ledger.cases_with(job)
        if not cases:  # a preempted job fails right after: irrelevant
            self._pods.release_job_pods(job, pod_uid=pod_uid)
        for case in cases:
            is_of_run = not pod_uid or any(member.pod_uid == pod_uid for member in case.members)
            if is_of_run and case.doubtful and not case.cancelled:
                self._cancel_preemption(case, "it was not preempted")

    def _on_job_cancellation(self, job: str, why: str) -> None:
        self._unseen.pop(job, None)
        cases = self._ledger.cases_with(job)
        if not cases:
            self._pods.release_job_pods(job)
        for case in cases:
            if not case.cancelled:
                self._cancel_preemption(case, why)

    def _on_set_cancellation(self, job_set: JobSet) -> None:
        """Cancel the set's preemptions: Armada sends this event only for jobs that are not terminal."""
        for job, (of, _) in tuple(self._unseen.items()):
            if of == job_set:
                del self._unseen[job]
        for case in tuple(self._ledger.open_preemptions_of(job_set)):
            if not case.cancelled:
                self._cancel_preemption(case, "the job set was cancelled")

    def _cancel_preemption(self, case: OpenPreemption, why: str) -> None:
        cancelled = replace(case, cancelled=why)
        self._ledger.put_case(cancelled, lambda: self._on_cancellation_persisted(cancelled))

    def _on_cancellation_persisted(self, case: OpenPreemption) -> None:
        if case.has_state_to_save:
            self._effects.report(PreemptionCancelled(case.uid, case.cancelled))
        for member in case.members:
            self._pods.release_job_pods(member.job, namespace=member.namespace)

    def _on_job_submission(self, job_set: JobSet, event: JobEvent) -> None:
        """Record a successor of a preempted job; a second one for the same job is surplus."""
        made = event.submitted
        followed = predecessor_by_client_id(made.client_id) if made is not None else None
        if made is None or followed is None:
            return
        known = (one for one in self._ledger.cases_with(followed) if one.job_set == job_set)
        case = next((one for one in known if _has_job(one, followed, made.namespace)), None)
        noted = case.successors.get(followed, event.job) if case is not None else event.job
        first = self._successors.setdefault((job_set, made.client_id), noted)
        _limit_entries(self._successors)
        if first != event.job:
            self._effects.cancel_surplus_job(job_set, event.job)
            return
        if case is None or followed in case.successors:
            return
        member = next((one for one in case.members if one.job == followed), None)
        if member is not None:
            identifier = member.id or checkpoint_id_of(made)
            self._ledger.awaited[event.job] = AwaitedJob(job_set, made.namespace, identifier, member.index)
        self._ledger.put_case(replace(case, successors={**case.successors, followed: event.job}))


def _has_job(case: OpenPreemption, job: str, namespace: str) -> bool:
    """Whether a job submitted into this namespace is part of the case."""
    return job in case.others or any(one.job == job and one.namespace in {"", namespace} for one in case.members)


def _limit_entries(remembered: dict[Any, Any]) -> None:
    """Drop the oldest entry above the limit."""
    if len(remembered) > REMEMBERED:
        del remembered[next(iter(remembered))]
