"""Interface of the extender to the state of pods, and to marks of evictions that the scheduler wants."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Way = Literal["preempt", "reclaim"]
"""Volcano's actions: preemption inside one queue, or between queues."""


class ProtectedPodState(msgspec.Struct, frozen=True):
    """Current state of a protected pod."""

    may_go: bool
    """Its eviction loses nothing, or must not be held longer: its hold is over, past its deadline, or was never
    created."""
    stays: bool = False
    """It could not be saved, and its policy keeps it running: for now it is no victim."""
    saving: bool = False
    """A preemption of it is held, or was released and has not happened yet."""
    unsaved_seconds: float = 0.0
    """Work lost if it ended now, in seconds since its newest restorable snapshot, or since its start. If one member's
    end ends a gang, the sum over all members."""


class EvictionRequester(msgspec.Struct, frozen=True):
    """The preemptor: `job` is the `namespace/podgroup` of the pod with this uid."""

    way: Way
    job: str
    pod_uid: str


class ProtectedPodStates(Protocol):
    """Answers from caches, at once; the scheduler waits."""

    @property
    def is_synced(self) -> bool:
        """Whether all caches have synced. Before, protected pods are unknown, and no call is answered."""
        ...

    def state_of(self, pod_uid: str) -> ProtectedPodState | None:
        """Return the pod's state; None if it is not protected, or unknown."""
        ...

    def record_eviction_request(self, pod_uid: str, by: EvictionRequester) -> None:
        """Record that the scheduler wants to evict this protected pod.

        Repeated in each scheduling cycle, about once a second, while the scheduler wants that, even once the pod may be
        evicted. Without repetition the request expires.
        """
        ...

    def free_resources(self, node: str, preemptor: str) -> dict[str, float] | None:
        """Return what is free on a node, or will be once terminating pods are gone; None if unknown.

        Resources that other nominated pods wait for are not free to the preemptor, given by its pod's uid.

        In Volcano's units: `cpu` in thousandths, `memory` in bytes, `pods`, others by name in thousandths.
        """
        ...
