"""How long a deadline may be that others name: an admin's word for the cluster, kept where policies and holds come in.

Who may write a CheckpointPolicy, or name one, says by it how long evictions and nodes wait for him.
"""

from __future__ import annotations

from cedana_sched.model.errors import UsageError
from cedana_sched.model.policy import DEADLINES, CheckpointPolicy


def capped(policy: CheckpointPolicy, longest_seconds: float) -> CheckpointPolicy:
    """The same, with no deadline above that."""
    above = {field: longest_seconds for field in DEADLINES if getattr(policy, field) > longest_seconds}
    return policy.model_copy(update=above) if above else policy


def check_deadlines(policy: CheckpointPolicy, longest_seconds: float) -> None:
    """Raises UsageError: a deadline is above that; it names the field as people write it."""
    for field in DEADLINES:
        if (seconds := getattr(policy, field)) > longest_seconds:
            remedy = f"write {longest_seconds:g} or less, or raise longestDeadlineSeconds of the chart"
            written = f"spec.{type(policy).model_fields[field].alias}"
            raise UsageError(written, seconds, "is longer than this installation allows", remedy=remedy)
