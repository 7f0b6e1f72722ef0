"""The demo's state: its jobs, their events, and the usage of the groups. No I/O.

`Board.put` applies an event of the engine's watch stream; a screen renders the board.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cedana_sched.local.views import CheckpointView, JobView, RestoreView

ENDED = frozenset({"Succeeded", "Failed", "Cancelled"})
_HOLDS_QUOTA = frozenset({"Starting", "Running", "Preempting"})


@dataclass(frozen=True)
class Moment:
    """An event of a job, `at` seconds since the epoch."""

    at: float
    job: str
    text: str


@dataclass
class Board:
    """The jobs by name, and the moments in order of observation."""

    began: float
    jobs: dict[str, JobView] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)

    def put(self, job: JobView, now: float) -> list[Moment]:
        """Update a job's state; return the moments that are new."""
        news = list(_news(self.jobs.get(job.name), job, now))
        self.jobs[job.name] = job
        self.moments += news
        return news

    def used_cpus(self, group: str) -> float:
        """Return the number of processors that a group's jobs use now."""
        return sum(job.cpus * job.replicas for job in self.jobs.values() if job.group == group and _holds_quota(job))

    @property
    def is_terminal(self) -> bool:
        """Whether every job has ended."""
        return bool(self.jobs) and all(job.phase in ENDED for job in self.jobs.values())


def _holds_quota(job: JobView) -> bool:
    return job.phase in _HOLDS_QUOTA


def _news(before: JobView | None, job: JobView, now: float) -> list[Moment]:
    texts: list[tuple[float, str]] = []
    if before is None or before.phase != job.phase:
        texts.append((now, _phase_text(before, job)))
    texts += _checkpoint_news(before.checkpoint if before else None, job.checkpoint, now)
    texts += _restore_news(before.restore if before else None, job.restore, now)
    return [Moment(at, job.name, text) for at, text in sorted(texts)]


def _phase_text(before: JobView | None, job: JobView) -> str:
    change = f"{before.phase} → {job.phase}" if before else job.phase
    return f"{change} ({job.why})" if job.why else change


def _checkpoint_news(
    before: CheckpointView | None, now_is: CheckpointView | None, now: float
) -> list[tuple[float, str]]:
    if now_is is None:
        return []
    old = before if before is not None and before.uid == now_is.uid else None
    texts: list[tuple[float, str]] = []
    if old is None:
        cause = f"{now_is.reason}, for {now_is.preemptor}" if now_is.preemptor else now_is.reason
        texts.append((now_is.created_at, f"notice: {cause}"))
    if now_is.frozen_at and not (old and old.frozen_at):
        texts.append((now_is.frozen_at, "frozen: it executes nothing any more"))
    if now_is.committed_at and not (old and old.committed_at):
        texts.append((now_is.committed_at, f"committed as {now_is.snapshot}"))
    if now_is.failure and not (old and old.failure):
        texts.append((now, f"checkpoint failed: {now_is.failure}"))
    return texts


def _restore_news(before: RestoreView | None, now_is: RestoreView | None, now: float) -> list[tuple[float, str]]:
    if now_is is None:
        return []
    old = before if before is not None and before.uid == now_is.uid else None
    if now_is.failure and not (old and old.failure):
        return [(now, f"restore failed: {now_is.failure}")]
    if now_is.running_at and now_is.snapshot and not now_is.cold and not (old and old.running_at):
        return [(now_is.running_at, f"runs again, in new processes, from {now_is.snapshot}")]
    return []
