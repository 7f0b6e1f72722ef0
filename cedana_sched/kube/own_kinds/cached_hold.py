"""PreemptionHolds, and when they end."""

from __future__ import annotations

from datetime import datetime, timedelta

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.parts import PartialStruct, intern_texts
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep

CLOCKS_DIFFER = timedelta(seconds=60)
"""Tolerance added to the longest allowed hold, counted from its creation."""


def _check_times(*texts: str | None) -> None:
    """Raise ValueError for a timestamp that is invalid or has no time zone, so that the object is not read."""
    for text in texts:
        if text and datetime.fromisoformat(text).tzinfo is None:
            raise ValueError(f"{text!r} has no time zone")


class HeldObject(PartialStruct, frozen=True):
    uid: str


class HoldSpec(PartialStruct, frozen=True):
    reason: str = ""
    held_object_ref: HeldObject | None = None
    uid: str = ""
    creation_time: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        _check_times(self.creation_time)
        intern_texts(self, "reason", "adapter")


class VictimStatus(PartialStruct, frozen=True):
    pod_uid: str
    verdict: Verdict


class HoldStatus(PartialStruct, frozen=True):
    """`deadline` is None until the coordinator has written the status."""

    step: HoldStep = HoldStep.HOLDING
    deadline: str | None = None
    release_time: str | None = None
    victims: tuple[VictimStatus, ...] = ()

    def __post_init__(self) -> None:
        _check_times(self.deadline, self.release_time)

    def verdict_on(self, pod_uid: str) -> Verdict | None:
        return next((victim.verdict for victim in self.victims if victim.pod_uid == pod_uid), None)

    @property
    def is_cancelled(self) -> bool:
        """Whether the eviction was cancelled, or its victims ended: the hold does not apply to the next eviction."""
        verdicts = {victim.verdict for victim in self.victims}
        return self.step is not HoldStep.HOLDING and verdicts == {Verdict.NOT_NEEDED}


class PreemptionHold(PartialStruct, frozen=True):
    metadata: Metadata
    spec: HoldSpec
    status: HoldStatus = HoldStatus()

    @property
    def longest_seconds(self) -> float:
        """Upper bound of any policy."""
        return LONGEST_DEADLINE_SECONDS

    @property
    def expires_at(self) -> datetime | None:
        """When the hold expires, whatever its object contains; None if the API server has not dated it."""
        created = self.metadata.creation_timestamp
        longest = timedelta(seconds=self.longest_seconds) + CLOCKS_DIFFER
        return datetime.fromisoformat(created) + longest if created else None

    @property
    def capped_deadline(self) -> datetime | None:
        """Deadline, capped by the installation; None until the coordinator has written the status.

        The author of a hold, even of a forged one, controls its content, but not its creation time.
        """
        if self.status.deadline is None:
            return None
        deadline, over = datetime.fromisoformat(self.status.deadline), self.expires_at
        return deadline if over is None else min(deadline, over)

    def comparable_creation_time(self, moment: str | None, now: datetime) -> str:
        """Return the creation time for comparison with others'; empty, and so the earliest, if unknown.

        The writer's clock may have been ahead: a hold that is over was not created in the future.
        """
        if not moment or self.status.step is HoldStep.HOLDING:
            return moment or ""
        return moment if datetime.fromisoformat(moment) <= now + CLOCKS_DIFFER else ""

    def __post_init__(self) -> None:
        _check_times(self.metadata.creation_timestamp)


class EarlierHoldSpec(PartialStruct, frozen=True):
    uid: str = ""
    adapter: str = ""


class EarlierVictim(PartialStruct, frozen=True):
    pod_uid: str = ""


class EarlierHoldStatus(PartialStruct, frozen=True):
    step: str = HoldStep.HOLDING
    victims: tuple[EarlierVictim, ...] = ()


class EarlierHold(PartialStruct, frozen=True):
    """A hold of an earlier coordinator: lenient, so that one of a newer version hides no other."""

    spec: EarlierHoldSpec = EarlierHoldSpec()
    status: EarlierHoldStatus = EarlierHoldStatus()


class CappedHold(PreemptionHold, frozen=True):
    """A hold capped at `allowed_seconds` by the installation instead of the object."""

    allowed_seconds: float = LONGEST_DEADLINE_SECONDS

    @property
    def longest_seconds(self) -> float:
        return self.allowed_seconds
