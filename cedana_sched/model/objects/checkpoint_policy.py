"""`CheckpointPolicy`: what an admin decides for a queue or a workload."""

from __future__ import annotations

from cedana_sched.model.policy import CheckpointPolicy


class CheckpointPolicySpec(CheckpointPolicy):
    """The same fields as everywhere else a policy is written."""
