"""Cluster-wide cap on deadlines, set by an admin and enforced on every policy and hold.

Otherwise any author of a CheckpointPolicy, or of a reference to one, could delay evictions and nodes at will.
"""

from __future__ import annotations

from cedana_sched.model.errors import UsageError
from cedana_sched.model.policy import DEADLINES, CheckpointPolicy


def cap_deadlines(policy: CheckpointPolicy, longest_seconds: float) -> CheckpointPolicy:
    """Return the policy with every deadline capped."""
    above = {field: longest_seconds for field in DEADLINES if getattr(policy, field) > longest_seconds}
    return policy.model_copy(update=above) if above else policy


def check_deadlines(policy: CheckpointPolicy, longest_seconds: float) -> None:
    """Raises UsageError: a deadline exceeds the cap; the error names the field as written in YAML."""
    for field in DEADLINES:
        if (seconds := getattr(policy, field)) > longest_seconds:
            remedy = f"write {longest_seconds:g} or less, or raise longestDeadlineSeconds of the chart"
            written = f"spec.{type(policy).model_fields[field].alias}"
            raise UsageError(written, seconds, "is longer than this installation allows", remedy=remedy)
