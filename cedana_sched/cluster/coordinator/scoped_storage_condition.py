"""The condition of a CheckpointStorage that shows whether a node can reach snapshots of all namespaces in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.objects.base import ConditionStatus
from cedana_sched.store.credential_renewal import SessionCredentials
from cedana_sched.store.storage_config import S3Location

SCOPED: Final = "Scoped"
"""Condition type."""
_TRIED: Final = "cedana-sched"
"""A nonexistent namespace of the store; credentials for it are only a test, and are discarded."""


class ScopedCondition(NamedTuple):
    """Content of the condition."""

    status: ConditionStatus
    reason: str
    message: str


class ScopedConditionProbe:
    """Evaluates the condition. Calls block.

    Args:
        bucket: for which agents get namespace credentials; None: agents have the bucket's keys.
        begin: issues credentials for a namespace and a session name; None iff `bucket` is.
    """

    def __init__(
        self, bucket: S3Location | None = None, begin: Callable[[str, str], SessionCredentials] | None = None
    ) -> None:
        self._bucket = bucket
        self._begin = begin

    def evaluate(self, location: S3Location) -> ScopedCondition:
        """Evaluate the condition for this bucket now."""
        if self._bucket is None or self._begin is None or not _is_same(location, self._bucket):
            sentence = (
                "each node holds the keys of the whole bucket, and who takes one over reads the snapshots of all"
                " namespaces; set storage.s3.scopedCredentials.enabled if the store has STS with session policies"
            )
            return ScopedCondition("False", "NodesHaveBucketKeys", sentence)
        try:
            self._begin(_TRIED, "coordinator")
        except CedanaSchedError as error:
            sentence = f"nodes hold no keys of the bucket, and get none of namespaces: nothing is saved: {error}"
            return ScopedCondition("False", type(error).__name__.removesuffix("Error"), sentence)
        return ScopedCondition(
            "True", "ScopedCredentials", "nodes get credentials of the namespaces of their pods and orders"
        )


def _is_same(one: S3Location, other: S3Location) -> bool:
    return (one.endpoint, one.bucket, one.prefix) == (other.endpoint, other.bucket, other.prefix)
