"""Our annotations on Queues. Volcano accepts every annotation, and only its controller would get our warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched.model.objects import names

CHECK: Final = "volcano queues"


def check_queue_protection(queues: Sequence[dict[str, Any]], policies: Collection[str] | None) -> Iterator[Finding]:
    """Yield Queues that do not protect their pods as intended.

    Args:
        queues: all Queue objects of the cluster.
        policies: names of all CheckpointPolicies; None if unknown.
    """
    for queue in queues:
        name, annotations = queue["metadata"]["name"], queue["metadata"].get("annotations") or {}
        protect = annotations.get(names.PROTECT)
        if protect not in {None, "true", "false"}:
            message = f"queue {name} protects no pod: {names.PROTECT} is {protect!r}"
            yield Finding(CHECK, Level.WARN, message, "write 'true', or leave it out")
        policy = annotations.get(names.POLICY)
        if protect == "true" and policy and policies is not None and policy not in policies:
            wrong = f"{names.POLICY} is {policy!r}, which is no CheckpointPolicy"
            message = f"pods of queue {name} are not protected: {wrong}"
            yield Finding(CHECK, Level.FAIL, message, "name one of 'kubectl get checkpointpolicies', or leave it out")
