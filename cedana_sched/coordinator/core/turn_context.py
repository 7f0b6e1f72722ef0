"""State shared by the rules: the book, the time of the turn, the instructions produced."""

from __future__ import annotations

from cedana_sched.coordinator.core.book import Book
from cedana_sched.coordinator.core.deadlines import Deadlines
from cedana_sched.coordinator.core.instructions import Instruction, PublishEvent, Send, Severity
from cedana_sched.coordinator.core.timing import Timing
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Order
from cedana_sched.model.preemption import WorkloadRef

TEXT_LIMIT = 1000


class TurnContext:
    """One per core. `now` is the time of the turn in epoch seconds; only the machine sets it."""

    def __init__(self, timing: Timing) -> None:
        self.book = Book()
        self.deadlines = Deadlines()
        self.timing = timing
        self.now = 0.0
        self.out: list[Instruction] = []
        self._repeat: dict[str, tuple[float, float]] = {}
        """By record: when its unanswered order is repeated, and the following interval."""

    def order(self, uid: str, node: str, order: Order) -> None:
        """Send the order that record `uid` waits on; repeated until the record's next transition."""
        self.out.append(Send(node, order))
        self._repeat[uid] = (self.now + self.timing.resend, self.timing.resend)

    def send_once(self, node: str, order: Order) -> None:
        """Send an order that no record waits on."""
        self.out.append(Send(node, order))

    def answered(self, uid: str) -> None:
        """Stop repeating the record's order."""
        self._repeat.pop(uid, None)

    def heard(self, uid: str) -> None:
        """Restart the repetition interval: the agent is working on the order."""
        if uid in self._repeat:
            self._repeat[uid] = (self.now + self.timing.resend, self.timing.resend)

    def repeat_in(self, uid: str, seconds: float) -> None:
        """Repeat the record's order after `seconds`; the following intervals double."""
        self._repeat[uid] = (self.now + seconds, seconds)

    def hasten(self) -> None:
        """Bound every repetition by its interval from now, after the clock was set back."""
        self._repeat = {uid: (min(at, self.now + pause), pause) for uid, (at, pause) in self._repeat.items()}

    def repeat_at(self, uid: str) -> float | None:
        """Return when the record's order is repeated (epoch seconds); None if it waits on no order."""
        entry = self._repeat.get(uid)
        return entry[0] if entry else None

    def lost(self, uid: str) -> None:
        """Schedule an early repetition of an order known to be lost, with exponential backoff."""
        entry = self._repeat.get(uid)
        if entry is None:
            return
        pause = entry[1] * 2 if entry[1] < self.timing.resend else self.timing.lost
        self._repeat[uid] = (self.now + pause, pause)

    def due(self, uid: str) -> bool:
        """Return whether the record's order must be repeated now; if so, double the interval."""
        entry = self._repeat.get(uid)
        if entry is None or self.now < entry[0]:
            return False
        pause = min(entry[1] * 2, self.timing.resend_most)
        self._repeat[uid] = (self.now + pause, pause)
        return True

    def tell(
        self,
        kind: str,
        text: str,
        *,
        identity: Identity | None = None,
        workload: WorkloadRef | None = None,
        signal_uid: str | None = None,
        warning: bool = False,
    ) -> None:
        """Emit a `PublishEvent`."""
        severity = Severity.WARNING if warning else Severity.NORMAL
        hold = self.book.holds.get(signal_uid) if signal_uid is not None else None
        held = hold.held if hold is not None else None
        victims: tuple[WorkloadRef, ...] = ()
        if hold is not None and held is None and workload is None:
            victims = tuple(one.workload for one in self.book.of_hold(hold))
        self.out.append(PublishEvent(kind, text[:TEXT_LIMIT], severity, identity, workload, signal_uid, held, victims))
