"""The eviction of one Job as the API server's audit log tells it: who wrote what, in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cedana_sched.model.objects.names import RELEASED_HOLD
from tests.cluster.fixtures.audit import Audit, Write
from tests.e2e.product.queues import KUEUE
from tests.e2e.product.rendering import NAMESPACE

COORDINATOR = f"system:serviceaccount:{NAMESPACE}:cedana-sched-coordinator"
AGENT = f"system:serviceaccount:{NAMESPACE}:cedana-sched-agent"
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
_NODE = "system:node:"


@dataclass(frozen=True)
class Eviction:
    """The writes of each step; all are tuples in the order of their answers."""

    evicted: tuple[Write, ...]
    """Kueue marks the Workload; it says so again whenever it writes."""
    refused: tuple[Write, ...]
    """Kueue's suspensions of the Job that our webhook answered by 429."""
    frozen: tuple[Write, ...]
    """The agents' answers."""
    committed: tuple[Write, ...]
    released: tuple[Write, ...]
    """The coordinator annotates the Job."""
    suspended: tuple[Write, ...]
    """Kueue's suspensions that went through."""
    deleted: tuple[Write, ...]
    """The Job's controller deletes its pods."""
    died: tuple[Write, ...]
    """For each pod, the kubelet's first word of a container's end."""

    @classmethod
    def of(cls, audit: Audit, namespace: str, job: str) -> Eviction:
        """What has happened to a Job so far; its pods' names begin with its own."""
        writes = audit.writes(namespace=namespace)

        def some(resource: str, user: str, condition: Callable[[Write], bool], prefix: str = "") -> tuple[Write, ...]:
            found = (one for one in writes if one.resource == resource and one.user.startswith(user))
            return tuple(one for one in found if one.name.startswith(prefix) and condition(one))

        suspends = some("jobs", KUEUE, lambda one: one.name == job and bool(_part(one, "spec").get("suspend")))
        died = some("pods/status", _NODE, _has_terminated, f"{job}-")
        return cls(
            evicted=some("workloads/status", KUEUE, _says("Evicted"), f"job-{job}-")[:1],
            refused=tuple(one for one in suspends if one.code == 429),
            frozen=some("checkpoints/status", AGENT, _answers("Frozen")),
            committed=some("checkpoints/status", AGENT, _answers("Committed")),
            released=some("jobs", COORDINATOR, lambda one: one.name == job and _names_a_hold(one)),
            suspended=tuple(one for one in suspends if one.code < 300),
            deleted=some("pods", JOB_CONTROLLER, lambda one: one.verb == "delete" and one.code < 300, f"{job}-"),
            died=tuple({one.name: one for one in reversed(died)}.values())[::-1],
        )

    def steps(self) -> list[tuple[str, tuple[Write, ...]]]:
        """In the order in which they must come."""
        return [
            ("evicted", self.evicted),
            ("frozen", self.frozen),
            ("committed", self.committed),
            ("released", self.released),
            ("suspended", self.suspended),
            ("deleted", self.deleted),
        ]


def of_ours(audit: Audit, namespace: str) -> list[Write]:
    """Every write of this product's in a namespace."""
    ours = f"system:serviceaccount:{NAMESPACE}:"
    return [one for one in audit.writes(namespace=namespace) if one.user.startswith(ours)]


def _says(condition: str) -> Callable[[Write], bool]:
    def check(write: Write) -> bool:
        conditions = _part(write, "status").get("conditions") or []
        return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)

    return check


def _answers(outcome: str) -> Callable[[Write], bool]:
    def check(write: Write) -> bool:
        answer: dict[str, Any] = _part(write, "status").get("answer") or {}
        return bool((answer.get("outcome") or {}).get("type") == outcome)

    return check


def _names_a_hold(write: Write) -> bool:
    return bool((_part(write, "metadata").get("annotations") or {}).get(RELEASED_HOLD))


def _has_terminated(write: Write) -> bool:
    containers = _part(write, "status").get("containerStatuses") or []
    return any("terminated" in (one.get("state") or {}) for one in containers)


def _part(write: Write, name: str) -> dict[str, Any]:
    """Of what was sent, unless that was a JSON patch."""
    part: dict[str, Any] = (write.body.get(name) or {}) if isinstance(write.body, dict) else {}
    return part
