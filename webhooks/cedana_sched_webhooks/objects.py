"""Our objects as far as an admission call looks at them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from cedana_sched.kube.objects import Metadata
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import TERMINAL_CHECKPOINT_STEPS, CheckpointStep, HoldStep, Phase

CLOCKS_DIFFER = timedelta(seconds=60)
"""So much longer than any policy allows may a hold be, from its creation."""


class _Read(msgspec.Struct, frozen=True, rename=api_name):
    pass


def _check_moments(*texts: str | None) -> None:
    """Raises ValueError, so that the object is not read, where one is no moment."""
    for text in texts:
        if text and datetime.fromisoformat(text).tzinfo is None:
            raise ValueError(f"{text!r} has no time zone")


class IdentitySpec(_Read, frozen=True):
    id: str
    index: int = 0


class PodSpec(_Read, frozen=True):
    node_name: str = ""
    uid: str = ""


class CheckpointSpec(_Read, frozen=True):
    """`hold` is the uid of the PreemptionHold that waits for it."""

    identity: IdentitySpec
    pod_ref: PodSpec = PodSpec()
    hold_uid: str = ""


class SnapshotName(_Read, frozen=True):
    generation: int


class CheckpointStatus(_Read, frozen=True):
    phase: Phase = Phase.PENDING
    step: CheckpointStep = CheckpointStep.WAITING
    snapshot: SnapshotName | None = None
    commit_time: str | None = None

    def __post_init__(self) -> None:
        _check_moments(self.commit_time)


class Checkpoint(_Read, frozen=True):
    metadata: Metadata
    spec: CheckpointSpec
    status: CheckpointStatus = CheckpointStatus()

    @property
    def generation(self) -> int | None:
        """What it made, once nothing is in the way of continuing it; None before, and when it failed or is deleted."""
        if self.metadata.deletion_timestamp is not None:
            return None
        if self.status.phase is Phase.READY and self.status.step is CheckpointStep.READY and self.status.snapshot:
            return self.status.snapshot.generation
        return None

    @property
    def in_flight(self) -> bool:
        return self.status.step not in TERMINAL_CHECKPOINT_STEPS


class HeldObject(_Read, frozen=True):
    uid: str


class HoldSpec(_Read, frozen=True):
    reason: str = ""
    held_object_ref: HeldObject | None = None
    uid: str = ""
    creation_time: str = ""

    def __post_init__(self) -> None:
        _check_moments(self.creation_time)


class VictimStatus(_Read, frozen=True):
    pod_uid: str
    verdict: Verdict


class HoldStatus(_Read, frozen=True):
    """`deadline` is None until the coordinator has written the status."""

    step: HoldStep = HoldStep.HOLDING
    deadline: str | None = None
    release_time: str | None = None
    victims: tuple[VictimStatus, ...] = ()

    def __post_init__(self) -> None:
        _check_moments(self.deadline, self.release_time)

    def verdict_on(self, pod_uid: str) -> Verdict | None:
        return next((victim.verdict for victim in self.victims if victim.pod_uid == pod_uid), None)

    @property
    def taken_back(self) -> bool:
        """Whether the eviction was given up, or its victims ended: it says nothing of the next one."""
        verdicts = {victim.verdict for victim in self.victims}
        return self.step is not HoldStep.HOLDING and verdicts == {Verdict.NOT_NEEDED}


class PreemptionHold(_Read, frozen=True):
    metadata: Metadata
    spec: HoldSpec
    status: HoldStatus = HoldStatus()

    @property
    def longest_seconds(self) -> float:
        """More than this no policy may say."""
        return LONGEST_DEADLINE_SECONDS

    @property
    def over_at(self) -> datetime | None:
        """When it counts for nothing any more, whatever stands in it; None where the API server has not dated it."""
        created = self.metadata.creation_timestamp
        longest = timedelta(seconds=self.longest_seconds) + CLOCKS_DIFFER
        return datetime.fromisoformat(created) + longest if created else None

    @property
    def ends_at(self) -> datetime | None:
        """Its deadline, but no later than is allowed here; None until the coordinator has written the status.

        Whoever writes a hold, a forged one too, chooses what stands in it, and not when it was created.
        """
        if self.status.deadline is None:
            return None
        deadline, over = datetime.fromisoformat(self.status.deadline), self.over_at
        return deadline if over is None else min(deadline, over)

    def dated(self, moment: str | None, now: datetime) -> str:
        """The moment at which it was made, to be compared with others'; empty, and so the earliest, if unknown.

        The clock of who dates it may have been ahead: one that is over already was not made in the future.
        """
        if not moment or self.status.step is HoldStep.HOLDING:
            return moment or ""
        return moment if datetime.fromisoformat(moment) <= now + CLOCKS_DIFFER else ""

    def __post_init__(self) -> None:
        _check_moments(self.metadata.creation_timestamp)


class HoldWithin(PreemptionHold, frozen=True):
    """A hold that counts for `allowed_seconds` at most: the installation says it, and not the object."""

    allowed_seconds: float = LONGEST_DEADLINE_SECONDS

    @property
    def longest_seconds(self) -> float:
        return self.allowed_seconds


class Policy(_Read, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] = {}
