"""What the extender must be told about pods, and whom it tells that the scheduler wants them gone."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Way = Literal["preempt", "reclaim"]
"""Volcano's actions: room inside one queue, or between queues."""


class Standing(msgspec.Struct, frozen=True):
    """How a protected pod stands at this moment."""

    may_go: bool
    """Its eviction loses nothing, or may wait no longer: its hold is over, past its deadline, or nobody took it up."""
    stays: bool = False
    """It could not be saved, and its policy keeps it running: for now it makes room for nobody."""
    saving: bool = False
    """A preemption of it is being held, or was released and has not happened yet."""
    unsaved_seconds: float = 0.0
    """What would be computed again if it ended now: time since its newest snapshot that can be continued, or since
    its start. Where one member's end ends a gang, the sum over all members."""


class Wanted(msgspec.Struct, frozen=True):
    """Who is to have the room: `job` is the `namespace/podgroup` of the pod with this uid."""

    way: Way
    job: str
    pod_uid: str


class Holder(Protocol):
    """Answers from memory, at once; the scheduler waits."""

    @property
    def synced(self) -> bool:
        """Whether everything has been listed once. Before, who is protected is not known, and no call is answered."""
        ...

    def standing(self, pod_uid: str) -> Standing | None:
        """None for a pod that is not protected, or not known."""
        ...

    def asked(self, pod_uid: str, by: Wanted) -> None:
        """Note that the scheduler wants this protected pod gone.

        Said again in each of its cycles, about one a second, for as long as it does, also once the pod may go. When it
        is not said any more, nobody wants the pod gone.
        """
        ...

    def free(self, node: str, preemptor: str) -> dict[str, float] | None:
        """What is free on a node, or will be once pods that are ending are gone; None where that is not known.

        What others wait for there is not free to the preemptor, which is named by its pod's uid.

        In Volcano's units: `cpu` in thousandths, `memory` in bytes, `pods`, others by name in thousandths.
        """
        ...
