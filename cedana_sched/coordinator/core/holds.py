"""Hold rules: all victims of one preemption are released together, never after the deadline."""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.coordinator.core import user_events
from cedana_sched.coordinator.core.checkpoint_steps import verdict_of
from cedana_sched.coordinator.core.checkpoints import Checkpoints
from cedana_sched.coordinator.core.instructions import PlaceHold, ReleaseHold
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.preemption import AfterCommit, Release, Signal
from cedana_sched.model.records import HoldStep, PreemptionHold


class Holds:
    """All holds of one core, and the signals that create them."""

    def __init__(self, turn: Turn, checkpoints: Checkpoints) -> None:
        self._turn = turn
        self._registry = turn.registry
        self._checkpoints = checkpoints

    def create(self, signal: Signal) -> None:
        """Create the hold and checkpoints of a signal. Idempotent: a repeated signal repeats the instruction."""
        known = self._registry.holds.get(signal.uid)
        if known is not None:
            self._repeat_placing(known, signal)
            return
        if self._registry.checkpoints_of_signal(signal.uid):
            return
        deadline = min(
            [signal.observed_at + victim.policy.deadline_seconds for victim in signal.victims] or [self._turn.now]
        )
        if signal.not_after is not None:
            deadline = min(deadline, signal.not_after)
        uids = self._checkpoints.create(signal, deadline)
        if signal.after_commit is AfterCommit.LEAVE_RUNNING:
            return
        namespace = _namespace_of(signal)
        hold = PreemptionHold(
            uid=signal.uid,
            adapter=signal.adapter,
            preemptor=signal.preemptor,
            reason=signal.reason,
            step=HoldStep.HOLDING,
            created_at=self._turn.now,
            deadline=deadline,
            checkpoints=uids,
            release_group=signal.release_group,
            namespace=namespace,
            namespace_uid=_namespace_uid_of(signal, namespace),
            held=signal.held,
        )
        self._registry.add(hold, self._turn.now, f"signal of {signal.adapter}, {signal.reason}")
        self._turn.out.append(PlaceHold(signal.adapter, signal))

    def _repeat_placing(self, hold: PreemptionHold, signal: Signal) -> None:
        if hold.step is HoldStep.HOLDING:
            self._turn.out.append(PlaceHold(hold.adapter, signal))
        else:
            self.send_release(hold)

    def confirm_placed(self, signal_uid: str, until: float | None) -> None:
        """Record that the adapter holds the eviction, possibly for less time than the policy grants."""
        hold = self._registry.holds.get(signal_uid)
        if hold is None or hold.step is not HoldStep.HOLDING:
            return
        if until is not None and until < hold.deadline:
            hold = replace(hold, deadline=until)
            self._registry.update(hold)
            self._checkpoints.shorten_deadlines(signal_uid, until)
            self.set_next_timer(hold)
        self._turn.publish(user_events.eviction_held_event(hold, self._turn.now))

    def confirm_released(self, signal_uid: str) -> None:
        """Record that the adapter has released its scheduler."""
        hold = self._registry.holds.get(signal_uid)
        if hold is None:
            return
        released = self._registry.take_transition(hold, Cause.RELEASE_DONE, self._turn.now, released_at=self._turn.now)
        if released is not None:
            self._checkpoints.set_final_kill_timers(released)

    def report_failure(self, signal_uid: str, why: str) -> None:
        """Publish that the adapter could not release; the shell retries."""
        self._turn.publish(user_events.release_failed_event(signal_uid, why))

    def send_release(self, hold: PreemptionHold) -> None:
        """Repeat a decided release; the adapter's `release` is idempotent."""
        self._turn.out.append(ReleaseHold(hold.adapter, Release(hold.uid, hold.verdicts, hold.reasons)))

    def repeat_after_recovery(self, hold: PreemptionHold) -> None:
        """Repeat a release that may not have arrived (recovery)."""
        if hold.step is HoldStep.RELEASING:
            self.send_release(hold)

    def reconcile(self, hold: PreemptionHold) -> None:
        """Release the hold once its checkpoints and those of its companions are terminal."""
        if hold.step is HoldStep.HOLDING and self._registry.are_terminal(hold):
            for companion in self._registry.holds_released_with(hold):
                self._release(companion, Cause.SETTLED)
                self.set_next_timer(self._registry.holds[companion.uid])
        self.set_next_timer(self._registry.holds[hold.uid])

    def handle_timer(self, hold: PreemptionHold) -> None:
        """Handle an expired timer: the deadline, or the record's retention."""
        if hold.step is HoldStep.HOLDING:
            for checkpoint in self._registry.current_versions_of(
                self._registry.checkpoints_of_hold(hold)
            ):  # a gang member may have failed it
                if not checkpoint.is_terminal:
                    self._checkpoints.handle_timer(checkpoint)
            self._release(self._registry.holds[hold.uid], Cause.DEADLINE)
            if self._registry.are_terminal(hold) and (companions := self._registry.holds_released_with(hold)):
                self.reconcile(companions[0])  # this hold no longer blocks them
        elif (at := self._forget_at(hold)) is not None and self._turn.now >= at:
            self._registry.forget(hold)

    def set_next_timer(self, hold: PreemptionHold) -> None:
        """Set the hold's next timer."""
        if hold.step is HoldStep.HOLDING:
            at: float | None = hold.deadline
        else:
            at = self._forget_at(hold)
        self._turn.timers.set(hold.uid, at)

    def _forget_at(self, hold: PreemptionHold) -> float | None:
        if hold.released_at is None:
            return None
        return max(hold.released_at + self._turn.timing.remember, hold.deadline)

    def _release(self, hold: PreemptionHold, cause: Cause) -> None:
        checkpoints = self._registry.checkpoints_of_hold(hold)
        verdicts = {c.workload.uid: verdict_of(c) for c in checkpoints}
        reasons = {c.workload.uid: c.failure for c in checkpoints if c.failure is not None}
        released = self._registry.take_transition(hold, cause, self._turn.now, verdicts=verdicts, reasons=reasons)
        if released is not None:
            self._turn.publish(
                user_events.eviction_released_event(released, self._turn.now, deadline=cause is Cause.DEADLINE)
            )
            self.send_release(released)


def _namespace_of(signal: Signal) -> str:
    if signal.held is not None:
        return signal.held.namespace
    return signal.victims[0].workload.namespace if signal.victims else ""


def _namespace_uid_of(signal: Signal, namespace: str) -> str:
    """Return the namespace uid recorded on the victims there; empty if unknown."""
    there = (victim.workload for victim in signal.victims if victim.workload.namespace == namespace)
    return next((workload.namespace_uid for workload in there if workload.namespace_uid), "")
