"""Checkpoint failures: a set fails as a whole, and is retried as a whole if that may help."""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.coordinator.core.checkpoint_steps import DECIDED, CheckpointSteps
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.policy import OnCheckpointFailure
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import Checkpoint, CheckpointStep
from cedana_sched.model.texts import cut

_POLICY_VERDICT = {
    OnCheckpointFailure.EVICT: Verdict.EVICT,
    OnCheckpointFailure.KEEP_RUNNING: Verdict.KEEP_RUNNING,
}


def verdict_of(checkpoint: Checkpoint) -> Verdict:
    """Return the verdict to release with now."""
    if checkpoint.verdict is not None:
        return checkpoint.verdict
    return _POLICY_VERDICT[checkpoint.policy.on_checkpoint_failure]


def uid_of(signal_uid: str, workload_uid: str, attempt: int) -> str:
    """Return the uid of one attempt; deterministic, so a repeated signal yields the same uid."""
    return f"{signal_uid}.{workload_uid}.{attempt}"


class Failures:
    """The failures of all checkpoints of one core."""

    def __init__(self, context: TurnContext, steps: CheckpointSteps) -> None:
        self._context = context
        self._book = context.book
        self._steps = steps

    def fail(self, checkpoint: Checkpoint, cause: Cause, why: str, *, retryable: bool = False) -> None:
        """Fail this checkpoint and its set; retry all of it if that may help."""
        why = cut(why)
        again = retryable and self._pause(checkpoint) is not None
        verdict = None if again else Verdict.NOT_NEEDED if cause is Cause.CANCELLED else verdict_of(checkpoint)
        failed = self._steps.move(checkpoint, cause, cancelled=True, failure=why, verdict=verdict)
        if failed is None:
            return
        if again:
            self._attempt_again([failed])
        rest = cause if cause in {Cause.DEADLINE, Cause.CANCELLED} else Cause.SET_FAILED
        self.fail_rest(failed, rest, f"gang member {failed.workload.name}: {why}", retryable=again)

    def fail_rest(
        self, failed: Checkpoint, cause: Cause, why: str, *, retryable: bool = False, at_once: bool = False
    ) -> None:
        """Fail the other members of a set whose member failed."""
        again = retryable and self._pause(failed) is not None
        survivors = []
        for member in self._book.members(failed):
            if member.uid == failed.uid or member.is_terminal or member.step in DECIDED:
                continue
            verdict = None if again else Verdict.NOT_NEEDED if cause is Cause.CANCELLED else verdict_of(member)
            moved = self._steps.move(member, cause, cancelled=True, failure=why, verdict=verdict)
            if moved is not None:
                survivors.append(moved)
        if again:
            self._attempt_again([m for m in survivors if not m.workload_gone], at_once=at_once)

    def ended(self, checkpoint: Checkpoint, why: str) -> None:
        if checkpoint.step is CheckpointStep.COMMITTED:
            self._steps.move(checkpoint, Cause.ENDED, workload_gone=True)
            return
        if checkpoint.step in DECIDED:
            self._steps.move(checkpoint, Cause.ENDED)
            return
        reason = f"the workload ended: {why}"
        self._steps.move(checkpoint, Cause.ENDED, cancelled=True, failure=reason, verdict=Verdict.NOT_NEEDED)
        self.fail_rest(checkpoint, Cause.SET_FAILED, "a member of its gang ended", retryable=True, at_once=True)

    def _pause(self, checkpoint: Checkpoint) -> float | None:
        """Return the backoff in seconds until the next attempt; None if too little time is left."""
        return self._context.timing.pause_within(checkpoint.attempt, checkpoint.deadline - self._context.now)

    def _attempt_again(self, failed: list[Checkpoint], *, at_once: bool = False) -> None:
        """Create replacement checkpoints, which start once the abort of the failed ones is confirmed."""
        for old in failed:
            attempt, pause = old.attempt + 1, self._pause(old)
            new = Checkpoint(
                uid=uid_of(old.signal_uid, old.workload.uid, attempt),
                signal_uid=old.signal_uid,
                adapter=old.adapter,
                workload=old.workload,
                identity=old.identity,
                policy=old.policy,
                gang=old.gang,
                after_commit=old.after_commit,
                reason=old.reason,
                step=CheckpointStep.WAITING,
                created_at=self._context.now,
                deadline=old.deadline,
                workload_started_at=old.workload_started_at,
                attempt=attempt,
                not_before=None if at_once or pause is None else self._context.now + pause,
            )
            self._book.add(new, self._context.now, f"attempt {attempt} after {old.failure}")
            hold = self._book.holds.get(old.signal_uid)
            if hold is not None:
                uids = tuple(new.uid if uid == old.uid else uid for uid in hold.checkpoints)
                self._book.update(replace(hold, checkpoints=uids))
