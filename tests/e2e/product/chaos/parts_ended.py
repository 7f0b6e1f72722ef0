"""How containers of the product ended, as the kubelets told the API server: also of pods that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.account import time_of
from tests.e2e.product.rendering import NAMESPACE

_LEASE = "could not be renewed"
_BY_A_FAULT = (0, 137, 255)
"""Asked to end; killed; its node went away."""
_SEGMENTATION_FAULT = 139
_NEVER_RAN = "StartError"
"""The reason where containerd could not make it, say because its shim was killed with the node; it is tried again."""
_OUT_OF_MEMORY = "OOMKilled"
"""The reason where no fault killed it, but the kernel, at its memory limit."""


@dataclass(frozen=True)
class Ending:
    """One container that ended; `message` is the end of its log, `started` is in epoch seconds."""

    pod: str
    status: int
    message: str
    started: float | None = None
    reason: str = ""

    @property
    def is_of_a_fault(self) -> bool:
        return self.status in _BY_A_FAULT and self.reason != _OUT_OF_MEMORY

    @property
    def has_crashed(self) -> bool:
        return self.status == _SEGMENTATION_FAULT

    @property
    def gave_up_its_lease(self) -> bool:
        """A leader that cannot keep its lease must not go on; it says so and begins again."""
        return self.status == 1 and _LEASE in self.message


def endings(writes: Sequence[Write]) -> Iterator[Ending]:
    """Each that ran, once."""
    seen: set[str] = set()
    for write in writes:
        if write.resource != "pods/status" or write.namespace != NAMESPACE or not write.body:
            continue
        for container in (write.body.get("status") or {}).get("containerStatuses") or ():
            for state in ("lastState", "state"):
                ended = (container.get(state) or {}).get("terminated") or {}
                if ended.get("reason") == _NEVER_RAN:
                    continue
                if ended.get("containerID") and ended["containerID"] not in seen:
                    seen.add(ended["containerID"])
                    started = time_of(ended["startedAt"]) if ended.get("startedAt") else None
                    message, reason = ended.get("message") or "", ended.get("reason") or ""
                    yield Ending(write.name, ended["exitCode"], message, started, reason)
