"""Rules of the checkpoints: how a set passes its barriers, fails together, and is attempted again.

A set is a gang's members, or one checkpoint alone. A failed attempt that may be repeated is aborted, and a new
attempt with new uids waits until nothing of the old one is left: no process is ever frozen by two checkpoints.
"""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.coordinator.core import orders, words
from cedana_sched.coordinator.core.desk import Desk
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.model.orders import (
    Aborted,
    CheckpointFailed,
    Committed,
    Frozen,
    Killed,
    Progress,
    Resume,
    Resumed,
    Retained,
)
from cedana_sched.model.policy import OnCheckpointFailure
from cedana_sched.model.preemption import After, Signal, Verdict, Victim
from cedana_sched.model.records import Checkpoint, CheckpointStep, Restore, RestoreStep

CheckpointOutcome = Frozen | Progress | Committed | CheckpointFailed | Killed | Resumed | Aborted | Retained

_SIMPLE_ANSWERS: dict[type, Cause] = {
    Frozen: Cause.FROZEN,
    Killed: Cause.KILLED,
    Resumed: Cause.RESUMED,
    Aborted: Cause.ABORTED,
}
_DECIDED = frozenset({CheckpointStep.KILLING, CheckpointStep.RESUMING, CheckpointStep.ABORTING})
_POLICY_VERDICT = {
    OnCheckpointFailure.LET_GO: Verdict.LET_GO,
    OnCheckpointFailure.KEEP_RUNNING: Verdict.KEEP_RUNNING,
}


def active(checkpoint: Checkpoint) -> bool:
    """Whether the agent was told to do something for it, and has not finished."""
    return checkpoint.step is not CheckpointStep.WAITING and not checkpoint.settled


def verdict_of(checkpoint: Checkpoint) -> Verdict:
    """What its scheduler is told if it must be told now."""
    if checkpoint.verdict is not None:
        return checkpoint.verdict
    return _POLICY_VERDICT[checkpoint.policy.on_checkpoint_failure]


class Checkpoints:
    """All checkpoints of one core."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._book = desk.book

    # -- what happens

    def create(self, signal: Signal, deadline: float) -> tuple[str, ...]:
        """One checkpoint for each victim of a signal; each begins as soon as nothing is in its way."""
        victims: dict[str, Victim] = {victim.workload.uid: victim for victim in signal.victims}
        uids = []
        for victim in victims.values():
            checkpoint = Checkpoint(
                uid=_uid(signal.uid, victim.workload.uid, 1),
                signal_uid=signal.uid,
                adapter=signal.adapter,
                workload=victim.workload,
                identity=victim.identity,
                policy=victim.policy,
                gang=victim.gang,
                after=signal.after,
                reason=signal.reason,
                step=CheckpointStep.WAITING,
                created_at=self._desk.now,
                deadline=deadline,
                workload_started_at=victim.started_at,
            )
            self._book.add(checkpoint, self._desk.now, f"signal of {signal.adapter}, {signal.reason}")
            uids.append(checkpoint.uid)
        return tuple(uids)

    def answer(self, outcome: CheckpointOutcome) -> None:
        """Take in an agent's answer; answers for what is forgotten already are dropped."""
        checkpoint = self._book.checkpoints.get(outcome.checkpoint_uid)
        if checkpoint is None or isinstance(outcome, Retained):
            return
        if isinstance(outcome, Progress):
            if checkpoint.step is CheckpointStep.DUMPING:
                self._book.update(replace(checkpoint, transfer=outcome.transfer), stored=False)
                self._desk.heard(checkpoint.uid)
                self.arm(checkpoint)
        elif isinstance(outcome, Committed):
            self._committed(checkpoint, outcome)
        elif isinstance(outcome, CheckpointFailed):
            self._fail(checkpoint, Cause.CHECKPOINT_FAILED, outcome.why, retryable=outcome.retryable)
        else:
            cause = _SIMPLE_ANSWERS[type(outcome)]
            changes = {"frozen_at": self._desk.now} if cause is Cause.FROZEN else {}
            if self._move(checkpoint, cause, **changes) is not None:
                return
            if cause is Cause.FROZEN:
                self._frozen_too_late(checkpoint)
            else:
                self._confirm(checkpoint)

    def cancel(self, signal_uid: str, why: str) -> None:
        """The preemption is called off: abort whatever can be, the workloads run on."""
        for listed in self._book.of_signal(signal_uid):
            checkpoint = self._book.checkpoints[listed.uid]
            if not checkpoint.settled and checkpoint.step not in _DECIDED:
                self._fail(checkpoint, Cause.CANCELLED, f"the preemption was cancelled: {why}")

    def workload_ended(self, workload_uid: str, why: str) -> None:
        """A victim is gone by itself: its checkpoint fails harmlessly, the rest of its gang tries again without it."""
        for listed in self._book.of_workload(workload_uid):
            checkpoint = self._book.checkpoints[listed.uid]
            if not checkpoint.settled:
                self._ended(checkpoint, why)
            elif checkpoint.step is CheckpointStep.READY:
                self._confirm(checkpoint)

    def node_lost(self, node: str) -> None:
        """Nothing of the node is left: what is committed stays good, all else there fails."""
        for listed in tuple(self._book.checkpoints.values()):
            checkpoint = self._book.checkpoints[listed.uid]
            if checkpoint.workload.node != node:
                continue
            if checkpoint.settled:
                self._confirm(checkpoint)
                continue
            if checkpoint.step is CheckpointStep.COMMITTED:
                self._move(checkpoint, Cause.NODE_LOST, gone=True)
                continue
            why = f"node {node} is lost"
            committed = checkpoint.step in {CheckpointStep.KILLING, CheckpointStep.RESUMING}
            changes = {} if committed else {"failure": checkpoint.failure or why, "verdict": Verdict.NOT_NEEDED}
            # alone and fully dumped it may have been committed unheard: that snapshot is as good as any
            called_off = checkpoint.called_off or (not committed and checkpoint.gang is not None)
            self._move(checkpoint, Cause.NODE_LOST, called_off=called_off, **changes)
            if not committed:
                self._fail_rest(checkpoint, Cause.SET_FAILED, why)

    def agent_restarted(self, node: str) -> None:
        """Repeat every order of that node."""
        for checkpoint in tuple(self._book.checkpoints.values()):
            if checkpoint.workload.node != node:
                continue
            order = orders.of_checkpoint(checkpoint, self._desk.now, again=True)
            if order is None:
                continue
            if checkpoint.step in {CheckpointStep.FROZEN, CheckpointStep.COMMITTED}:
                self._desk.send_once(node, order)
            else:
                self._desk.order(checkpoint.uid, node, order)
            self.arm(checkpoint)

    def due(self, checkpoint: Checkpoint) -> None:
        """Its time has come: a deadline, a pause that is over, an order to repeat, or to be forgotten."""
        now = self._desk.now
        if checkpoint.settled and now >= self._forget_at(checkpoint):
            self._forget(checkpoint)
            return
        if checkpoint.step in _DECIDED:
            if now >= checkpoint.deadline + self._desk.timing.confirm:
                self._move(checkpoint, Cause.UNCONFIRMED, unconfirmed=True)
                return
        elif checkpoint.settled:
            pass
        elif now >= checkpoint.deadline:
            seconds = checkpoint.deadline - checkpoint.created_at
            self._fail(checkpoint, Cause.DEADLINE, f"not committed within {seconds:.0f} s")
            return
        if checkpoint.step is CheckpointStep.WAITING:
            self._try_to_begin(checkpoint)
        elif self._desk.due(checkpoint.uid):
            order = orders.of_checkpoint(checkpoint, now)
            if order is not None:
                self._desk.send_once(checkpoint.workload.node, order)
        self.arm(self._book.checkpoints[checkpoint.uid])

    # -- what follows from a changed record

    def draw(self, checkpoint: Checkpoint) -> None:
        """Barriers, beginnings and goodbyes that became possible."""
        if checkpoint.step is CheckpointStep.WAITING:
            self._try_to_begin(checkpoint)
        elif checkpoint.step is CheckpointStep.FROZEN:
            members = self._book.members(checkpoint)
            if all(member.step is CheckpointStep.FROZEN for member in members):
                for member in members:
                    self._move(member, Cause.ALL_FROZEN)
        elif checkpoint.step is CheckpointStep.COMMITTED:
            self._pass_commit_barrier(checkpoint)
        elif checkpoint.settled:
            self.workload_changed(checkpoint.workload.uid)
        self.arm(self._book.checkpoints[checkpoint.uid])

    def workload_changed(self, workload_uid: str) -> None:
        """Begin what waited for another checkpoint, or the restore, of this workload."""
        for listed in self._book.of_workload(workload_uid):
            checkpoint = self._book.checkpoints[listed.uid]
            if checkpoint.step is CheckpointStep.WAITING:
                self._try_to_begin(checkpoint)

    def tighten(self, signal_uid: str, deadline: float) -> None:
        """Something outside ends earlier than the policy's deadline."""
        for checkpoint in self._book.of_signal(signal_uid):
            if not checkpoint.settled and deadline < checkpoint.deadline:
                tightened = replace(checkpoint, deadline=deadline)
                self._book.update(tightened)
                self.arm(tightened)

    def arm(self, checkpoint: Checkpoint) -> None:
        """Set when it is looked at again."""
        timing, now = self._desk.timing, self._desk.now
        repeat = self._desk.repeat_at(checkpoint.uid)
        if checkpoint.settled:
            at = self._forget_at(checkpoint)
        elif checkpoint.step in _DECIDED:
            at = checkpoint.deadline + timing.confirm
        else:
            at = checkpoint.deadline
            if checkpoint.not_before is not None and checkpoint.not_before > now:
                at = min(at, checkpoint.not_before)
        self._desk.deadlines.set(checkpoint.uid, at if repeat is None else min(at, repeat))

    # -- the steps

    def _confirm(self, checkpoint: Checkpoint) -> None:
        """The node's silence about a settled checkpoint is over, or does not matter any more."""
        if checkpoint.unconfirmed:
            confirmed = replace(checkpoint, unconfirmed=False)
            self._book.update(confirmed)
            self._desk.answered(confirmed.uid)
            self.arm(confirmed)

    def _move(self, checkpoint: Checkpoint, cause: Cause, **changes: object) -> Checkpoint | None:
        """Take a step and give the order that goes with it."""
        moved = self._book.move_checkpoint(checkpoint, cause, self._desk.now, **changes)
        if moved is None or moved.step is checkpoint.step:
            return moved
        self._desk.answered(moved.uid)
        order = orders.of_checkpoint(moved, self._desk.now)
        if order is not None:
            self._desk.order(moved.uid, moved.workload.node, order)
        words.of_checkpoint(self._desk, moved, cause)
        if moved.step is CheckpointStep.READY and cause is not Cause.JOIN:
            self._retain(moved)
        return moved

    def _try_to_begin(self, waiting: Checkpoint) -> None:
        """Order the freeze of the whole set, unless something is in the way of any member."""
        if self._desk.now >= waiting.deadline:
            return  # its deadline is due in this very turn
        members = self._book.members(waiting)
        for member in members:
            if member.step is not CheckpointStep.WAITING:
                continue
            if member.not_before is not None and self._desk.now < member.not_before:
                return
            restore = self._book.restore_of(member.workload.uid)
            if stopped := self._book.stopped_by(member.workload.uid):
                self._join(member, stopped)
            elif restore is not None and restore.step in {RestoreStep.ENDED, RestoreStep.FAILED}:
                self._ended(member, "it runs no more")
                return
            elif _is_starting(restore) or any(map(active, self._book.of_workload(member.workload.uid))):
                return
        members = [self._book.checkpoints[member.uid] for member in members]
        waiting_members = [member for member in members if member.step is CheckpointStep.WAITING]
        if waiting_members and len(waiting_members) < len(members):
            taken = next(member for member in members if member.settled)
            self._fail_rest(taken, Cause.SET_FAILED, "a member of its gang was preempted without it")
            return
        for member in waiting_members:
            self._move(member, Cause.BEGIN)

    def _join(self, member: Checkpoint, other: Checkpoint) -> None:
        self._move(
            member,
            Cause.JOIN,
            snapshot=other.snapshot,
            transfer=other.transfer,
            committed_at=other.committed_at,
            verdict=Verdict.COMMITTED,
        )

    def _committed(self, checkpoint: Checkpoint, outcome: Committed) -> None:
        if checkpoint.step is CheckpointStep.FAILED:
            if checkpoint.called_off:  # long ago: discard what came after it
                self._desk.send_once(checkpoint.workload.node, orders.abort(checkpoint))
            return
        if outcome.snapshot.identity != checkpoint.identity and checkpoint.step is CheckpointStep.DUMPING:
            why = f"its agent committed {outcome.snapshot}, which is another identity's"
            self._fail(checkpoint, Cause.CHECKPOINT_FAILED, why)
            return
        changes = {"snapshot": outcome.snapshot, "transfer": outcome.transfer, "committed_at": self._desk.now}
        self._move(checkpoint, Cause.COMMITTED, **changes)

    def _frozen_too_late(self, checkpoint: Checkpoint) -> None:
        """A delayed `Freeze` may have been obeyed after all was over: have it undone, which is harmless if not."""
        node = checkpoint.workload.node
        if checkpoint.step is CheckpointStep.FAILED and checkpoint.called_off:
            self._desk.send_once(node, orders.abort(checkpoint))
        elif checkpoint.step is CheckpointStep.READY and checkpoint.after is After.CONTINUE:
            self._desk.send_once(node, Resume(checkpoint.uid, checkpoint.workload))

    def _pass_commit_barrier(self, checkpoint: Checkpoint) -> None:
        members = self._book.members(checkpoint)
        if any(member.step is not CheckpointStep.COMMITTED for member in members):
            return
        for member in members:
            if member.after is After.STOP:
                decided = self._move(member, Cause.KILL_ALL, verdict=Verdict.COMMITTED)
            else:
                decided = self._move(member, Cause.RESUME_ALL)
            if decided is not None and decided.gone:
                self._move(decided, Cause.ENDED)

    def _ended(self, checkpoint: Checkpoint, why: str) -> None:
        if checkpoint.step is CheckpointStep.COMMITTED:
            self._move(checkpoint, Cause.ENDED, gone=True)
            return
        if checkpoint.step in _DECIDED:
            self._move(checkpoint, Cause.ENDED)
            return
        reason = f"the workload ended: {why}"
        self._move(checkpoint, Cause.ENDED, called_off=True, failure=reason, verdict=Verdict.NOT_NEEDED)
        self._fail_rest(checkpoint, Cause.SET_FAILED, "a member of its gang ended", retryable=True, at_once=True)

    def _fail(self, checkpoint: Checkpoint, cause: Cause, why: str, *, retryable: bool = False) -> None:
        """This checkpoint fails, and with it its set; all of it is attempted again if that may help."""
        again = retryable and self._time_is_left(checkpoint)
        verdict = None if again else Verdict.NOT_NEEDED if cause is Cause.CANCELLED else verdict_of(checkpoint)
        failed = self._move(checkpoint, cause, called_off=True, failure=why, verdict=verdict)
        if failed is None:
            return
        if again:
            self._attempt_again([failed])
        rest = cause if cause in {Cause.DEADLINE, Cause.CANCELLED} else Cause.SET_FAILED
        self._fail_rest(failed, rest, f"gang member {failed.workload.name}: {why}", retryable=again)

    def _fail_rest(
        self, failed: Checkpoint, cause: Cause, why: str, *, retryable: bool = False, at_once: bool = False
    ) -> None:
        """The other members of a set whose member failed."""
        again = retryable and self._time_is_left(failed)
        survivors = []
        for member in self._book.members(failed):
            if member.uid == failed.uid or member.settled or member.step in _DECIDED:
                continue
            verdict = None if again else Verdict.NOT_NEEDED if cause is Cause.CANCELLED else verdict_of(member)
            moved = self._move(member, cause, called_off=True, failure=why, verdict=verdict)
            if moved is not None:
                survivors.append(moved)
        if again:
            self._attempt_again([m for m in survivors if not m.gone], at_once=at_once)

    def _time_is_left(self, checkpoint: Checkpoint) -> bool:
        return self._desk.now + self._desk.timing.pause(checkpoint.attempt) < checkpoint.deadline

    def _attempt_again(self, failed: list[Checkpoint], *, at_once: bool = False) -> None:
        """New checkpoints in the place of these; they begin when the abort of these is confirmed."""
        for old in failed:
            attempt = old.attempt + 1
            new = Checkpoint(
                uid=_uid(old.signal_uid, old.workload.uid, attempt),
                signal_uid=old.signal_uid,
                adapter=old.adapter,
                workload=old.workload,
                identity=old.identity,
                policy=old.policy,
                gang=old.gang,
                after=old.after,
                reason=old.reason,
                step=CheckpointStep.WAITING,
                created_at=self._desk.now,
                deadline=old.deadline,
                workload_started_at=old.workload_started_at,
                attempt=attempt,
                not_before=None if at_once else self._desk.now + self._desk.timing.pause(old.attempt),
            )
            self._book.add(new, self._desk.now, f"attempt {attempt} after {old.failure}")
            hold = self._book.holds.get(old.signal_uid)
            if hold is not None:
                uids = tuple(new.uid if uid == old.uid else uid for uid in hold.checkpoints)
                self._book.update(replace(hold, checkpoints=uids))

    def _retain(self, checkpoint: Checkpoint) -> None:
        spare = {
            ref.generation
            for restore in self._book.restores.values()
            for ref in (restore.snapshot, restore.wanted)
            if ref is not None and ref.identity == checkpoint.identity and restore.finished_at is None
        }
        order = orders.retain(checkpoint, tuple(sorted(spare)))
        self._desk.send_once(checkpoint.workload.node, order)

    def _forget_at(self, checkpoint: Checkpoint) -> float:
        """A signal that is repeated later than its deadline does no harm, remembered or not."""
        return max((checkpoint.finished_at or self._desk.now) + self._desk.timing.remember, checkpoint.deadline)

    def _forget(self, checkpoint: Checkpoint) -> None:
        """Drop it, together with its set, once its hold is released; a set with live members stays whole."""
        hold = self._book.holds.get(checkpoint.signal_uid)
        if hold is not None or any(not member.settled for member in self._book.members(checkpoint)):
            self._desk.deadlines.set(checkpoint.uid, self._desk.now + self._desk.timing.remember)
            return
        self._desk.answered(checkpoint.uid)
        self._desk.deadlines.set(checkpoint.uid, None)
        self._book.forget(checkpoint)


def _is_starting(restore: Restore | None) -> bool:
    return restore is not None and restore.step is not RestoreStep.RUNNING


def _uid(signal_uid: str, workload_uid: str, attempt: int) -> str:
    return f"{signal_uid}.{workload_uid}.{attempt}"
