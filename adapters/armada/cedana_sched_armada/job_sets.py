"""Watched job sets: those with protected pods here, with an open preemption, or with a resubmitted job.

Others cost nothing. A stream starts shortly before its first pod was created, and resumes at its last position after
broken connections and coordinator restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.index import Index
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.retrying import AWAITED, retry
from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.errors import ArmadaError, ArmadaUnavailableError
from cedana_sched_armada.events import JobEvent, JobSet, Kind, event_position_key, id_before
from cedana_sched_armada.executor_labels import JOB_SET_ANNOTATION
from cedana_sched_armada.job_of_pod import LONGEST_NAME, has_too_long_name, job_of, job_set_of
from cedana_sched_armada.ledger import Ledger
from cedana_sched_armada.metrics import FAILURES, FOLLOWED

log = structlog.get_logger(__name__)

LINGER_SECONDS = 600.0
"""Events of a job whose pod is gone may be this late."""
SHORTEST_SECONDS = 60.0
"""A watch that ends sooner was not ended by our own timeout."""
PUBLISHED_AGAIN_SECONDS = 300.0
"""A watch failure is published on all pods of the job set; retries are far more frequent."""
_LAST = {Kind.PREEMPTED, Kind.CANCELLED, Kind.OVER}


class JobSetWatcher:
    """Watches job sets.

    Args:
        server: Armada's.
        pods: protected ones; must have synced.
        ledger: stream positions and open preemptions.
        opted_in: whether a queue is.
        on_event: processes an event; `missed` if a pod of its job may have been here, and have ended.
        on_watch_failed: called with the pods concerned and the error if a job set cannot be watched now.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        server: ArmadaClient,
        pods: Informer[Pod],
        ledger: Ledger,
        opted_in: Callable[[str], bool],
        on_event: Callable[[JobSet, JobEvent, bool], None],
        on_watch_failed: Callable[[tuple[Pod, ...], CedanaSchedError], None],
        clock: Callable[[], float],
    ) -> None:
        self._server = server
        self._informer = pods
        self._pods = Index(job_set_of, pods)
        self._ledger = ledger
        self._opted_in = opted_in
        self._on_event = on_event
        self._on_watch_failed = on_watch_failed
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self._watched: dict[JobSet, asyncio.Task[None]] = {}
        self._unended: dict[JobSet, dict[str, asyncio.TimerHandle | None]] = {}
        """Jobs without a terminal event yet; with a timer once their pod is gone."""
        self._complained: dict[JobSet, tuple[type[CedanaSchedError], float]] = {}
        """Last published error type, and until when it is not repeated."""
        self._resumed: set[JobSet] = set()
        self._began_at = 0.0

    async def run(self) -> None:
        """Watch, forever."""
        self._began_at = self._clock()
        self._resumed = set(self._ledger.streams)
        try:
            async with asyncio.TaskGroup() as self._group:
                for job_set in self._resumed:
                    self._start_linger_timer(job_set, "")
                for job_set in {*self._resumed, *self._ledger.open_job_sets()}:
                    self.start_or_stop_watch(job_set)
                for pod in self._informer:
                    self._on_pod_change(None, pod)
                self._informer.subscribe(self._on_pod_change)
                await asyncio.Event().wait()
        finally:
            self._informer.unsubscribe(self._on_pod_change)
            self._group = None
            self._watched.clear()
            FOLLOWED.set(0)
            for timers in self._unended.values():
                for timer in timers.values():
                    if timer is not None:
                        timer.cancel()

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        pod = now if now is not None else before
        job_set, job = (job_set_of(pod), job_of(pod)) if pod is not None else (None, None)
        if pod is not None and job is not None and before is None and has_too_long_name(pod):
            remedy = "give the job set a shorter name"
            problem = f"has more than {LONGEST_NAME} characters: preemptions of its jobs are not followed"
            self._on_watch_failed((pod,), UsageError(JOB_SET_ANNOTATION, "its value", problem, remedy=remedy))
        if job_set is None or job is None or not self._opted_in(job_set.queue):
            return
        if before is None and now is not None and not now.finished:
            jobs = self._unended.setdefault(job_set, {})
            if (timer := jobs.get(job)) is not None:  # the lease was returned, and the job has another pod now
                timer.cancel()
            jobs[job] = None
        elif now is None and job in self._unended.get(job_set, {}):
            self._start_linger_timer(job_set, job)
        self.start_or_stop_watch(job_set)

    async def catch_up(self, job_set: JobSet) -> None:
        """Process all events that Armada has now, whatever the state of the watch.

        Raises:
            ArmadaError: they cannot be read now.
        """
        since = self._ledger.streams.get(job_set) or self._start_position(job_set)
        async for event in self._server.events(job_set, since, watch=False):
            self._process_event(job_set, event)

    def start_or_stop_watch(self, job_set: JobSet) -> None:
        """Start or stop watching the job set."""
        if self._group is None:
            return
        task = self._watched.get(job_set)
        if task is None and self._is_watch_needed(job_set):
            self._watched[job_set] = self._group.create_task(
                self._watch_with_retries(job_set), name=f"job set {job_set}"
            )
            FOLLOWED.set(len(self._watched))
        elif task is not None and not self._is_watch_needed(job_set):
            task.cancel()
            del self._watched[job_set]
            self._complained.pop(job_set, None)
            FOLLOWED.set(len(self._watched))
            self._ledger.forget_stream(job_set)
            log.info("job set is not followed any more", queue=job_set.queue, job_set=job_set.name)

    def _is_watch_needed(self, job_set: JobSet) -> bool:
        pods = self._pods.objects_of(job_set) if self._opted_in(job_set.queue) else ()
        return bool(pods or self._unended.get(job_set) or self._ledger.has_open_work(job_set))

    def _start_linger_timer(self, job_set: JobSet, job: str) -> None:
        timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._on_job_ended, job_set, job)
        self._unended.setdefault(job_set, {})[job] = timer

    def _on_job_ended(self, job_set: JobSet, job: str) -> None:
        jobs = self._unended.get(job_set, {})
        timer = jobs.pop(job, None)
        if timer is not None:
            timer.cancel()
        if not jobs:
            self._unended.pop(job_set, None)
        self.start_or_stop_watch(job_set)

    async def _watch_with_retries(self, job_set: JobSet) -> None:
        log.info("job set is followed", queue=job_set.queue, job_set=job_set.name)
        if job_set not in self._ledger.streams:
            self._ledger.streams[job_set] = self._start_position(job_set)
            self._ledger.schedule_write()  # a successor resumes it, even if the pods are gone by then
        what = f"events of job set {job_set}"
        while True:  # each received event resets the backoff
            await retry(
                what,
                lambda: self._watch_once(job_set),
                CedanaSchedError,
                profile=AWAITED,  # a preStop hook waits for the event that explains the deletion
                on_failure=lambda _, error: self._report_watch_failure(job_set, error),
            )

    def _report_watch_failure(self, job_set: JobSet, error: CedanaSchedError) -> None:
        FAILURES.inc()
        kind, until = self._complained.get(job_set, (None, 0.0))
        if type(error) is not kind or self._clock() >= until:
            self._complained[job_set] = type(error), self._clock() + PUBLISHED_AGAIN_SECONDS
            self._on_watch_failed(self._pods.objects_of(job_set), error)

    async def _watch_once(self, job_set: JobSet) -> None:
        """Watch until the stream breaks; raise if no event was received."""
        begun_at = self._ledger.streams[job_set]
        begun = self._clock()
        try:
            async for event in self._server.events(job_set, begun_at, watch=True):
                self._process_event(job_set, event)
        except ArmadaError as error:
            if self._ledger.streams.get(job_set) == begun_at:
                raise
            log.info("stream resumes", queue=job_set.queue, job_set=job_set.name, error=error.message)
            return
        if self._clock() - begun < SHORTEST_SECONDS:
            raise ArmadaUnavailableError(f"events of job set {job_set} ended", remedy="they are requested again")

    def _process_event(self, job_set: JobSet, event: JobEvent) -> None:
        """Process each event once, whichever call read it."""
        if event_position_key(event.id) <= event_position_key(self._ledger.streams.get(job_set, "")):
            return
        while_away = job_set in self._resumed and event.at < self._began_at
        missed = while_away or event.job in self._unended.get(job_set, {})
        try:
            self._on_event(job_set, event, missed)
        except Exception:  # a defect triggered by one job must not make its event repeat forever
            log.exception("event of Armada not taken in", job_set=job_set.name, job=event.job, kind=event.kind)
        self._ledger.record_position(job_set, event.id)
        if event.kind in _LAST:
            self._on_job_ended(job_set, event.job)
        elif event.kind is Kind.RUNNING:
            self.start_or_stop_watch(job_set)

    def _start_position(self, job_set: JobSet) -> str:
        """Return the start position of a stream that was not watched before."""
        made = (pod.metadata.creation_timestamp for pod in self._pods.objects_of(job_set))
        times = [datetime.fromisoformat(time).timestamp() for time in made if time]
        return id_before(min([self._clock(), *times]))
