"""The demo's final report: times, bytes, work saved, and whether the results are bit-identical. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from cedana_sched.cli import units
from cedana_sched.local.views import CheckpointView, JobView, RestoreView

_SHOWN_DIGITS = 16
_INDENT = 2


@dataclass(frozen=True)
class Result:
    """SHA-256 digests of a result file of the preempted and of the uninterrupted run; None for a missing file."""

    name: str
    ours: str | None
    reference: str | None

    @property
    def identical(self) -> bool:
        return self.ours is not None and self.ours == self.reference


@dataclass(frozen=True)
class Account:
    """The data of the final report."""

    simulation: JobView
    training: JobView
    seconds: float
    """Duration of the demo, without installations."""
    reference_seconds: float
    """Duration of the uninterrupted run."""
    results: tuple[Result, ...]
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return not self.differences and bool(self.results) and all(result.identical for result in self.results)

    @property
    def succeeded(self) -> bool:
        """Whether both jobs succeeded, the simulation was restored, and the results are bit-identical."""
        ended = self.simulation.phase == self.training.phase == "Succeeded"
        restore = self.simulation.restore
        return ended and self.identical and restore is not None and not restore.cold and restore.snapshot is not None


def as_text(account: Account) -> str:
    """Format the report as lines of at most 100 characters."""
    rows = [*_times(account), *_bytes(account), *_work(account)]
    width = max(len(name) for name, _ in rows) + _INDENT
    lines = [f"  {name:<{width}}{value}" for name, value in rows]
    return "\n".join([*lines, "", *_verdict(account)])


def _times(account: Account) -> list[tuple[str, str]]:
    checkpoint, restore = account.simulation.checkpoint, account.simulation.restore
    alone = units.format_duration(account.reference_seconds)
    waited = _between(account.training.submitted_at, account.training.started_at)
    return [
        ("notice → committed", _commit_time(checkpoint)),
        ("place given → running again", _return_time(restore)),
        (f"{account.training.name} waited for its place", units.format_duration(waited)),
        ("whole demo", f"{units.format_duration(account.seconds)}; the uninterrupted run took {alone}"),
    ]


def _commit_time(checkpoint: CheckpointView | None) -> str:
    if checkpoint is None or checkpoint.committed_at is None:
        return "no snapshot was committed"
    total = units.format_duration(checkpoint.committed_at - checkpoint.created_at)
    frozen = _between(checkpoint.created_at, checkpoint.frozen_at)
    return f"{total} (frozen after {units.format_duration(frozen)})"


def _return_time(restore: RestoreView | None) -> str:
    if restore is None or restore.running_at is None:
        return "it was not restored"
    return units.format_duration(restore.running_at - restore.created_at)


def _bytes(account: Account) -> list[tuple[str, str]]:
    checkpoint = account.simulation.checkpoint
    if checkpoint is None:
        return []
    parts = (
        (checkpoint.read_bytes, "read"),
        (checkpoint.zero_bytes, "zero"),
        (checkpoint.reused_bytes, "already stored"),
        (checkpoint.stored_bytes, "stored"),
    )
    return [("snapshot", ", ".join(f"{units.format_size(count)} {word}" for count, word in parts))]


def _work(account: Account) -> list[tuple[str, str]]:
    simulation = account.simulation
    rows = [
        ("work saved", f"{units.format_duration(simulation.work_saved_seconds)}, which a kill would have thrown away")
    ]
    if simulation.restore and simulation.restore.snapshot:
        rows.append(("continued", f"from {simulation.restore.snapshot}, run {len(simulation.runs)} of this job"))
    return rows


def _verdict(account: Account) -> list[str]:
    if account.identical:
        names = " ".join(result.name for result in account.results)
        lines = [f"  identical bit for bit to the uninterrupted run: yes ({names})"]
    else:
        lines = ["  identical bit for bit to the uninterrupted run: NO"]
        lines += [f"    {difference}" for difference in account.differences]
    return lines + [f"    {_result_line(result)}" for result in account.results]


def _result_line(result: Result) -> str:
    ours, reference = (digest[:_SHOWN_DIGITS] if digest else "missing" for digest in (result.ours, result.reference))
    return f"{result.name:<16} sha256 {ours} {'=' if result.identical else '≠'} {reference}"


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
