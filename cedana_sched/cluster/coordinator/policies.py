"""The CheckpointPolicies of the cluster, as they are now."""

from __future__ import annotations

import msgspec
import structlog
from pydantic import ValidationError

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CHECKPOINT_POLICIES
from cedana_sched.kube.watching import Mirror, Watch
from cedana_sched.model.deadline_cap import capped
from cedana_sched.model.objects.base import read_kept
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, CheckpointPolicy

log = structlog.get_logger(__name__)

DEFAULT = "default"


class _PolicyObject(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: Object = {}


class ClusterPolicies:
    """Implements `adapter.cluster.Policies`. Run `run` as a task.

    Args:
        longest_deadline_seconds: what no deadline may exceed, whatever a policy says.
    """

    def __init__(self, api: Api, longest_deadline_seconds: float = LONGEST_DEADLINE_SECONDS) -> None:
        self._longest_seconds = longest_deadline_seconds
        self._mirror = Mirror(Watch(api, CHECKPOINT_POLICIES, _PolicyObject))
        self.synced = self._mirror.synced

    async def run(self) -> None:
        await self._mirror.run()

    @property
    def awaited(self) -> str | None:
        """See `Mirror.awaited`."""
        return self._mirror.awaited

    def named(self, name: str | None) -> CheckpointPolicy:
        """See `adapter.cluster.Policies`."""
        return capped(self._found(name), self._longest_seconds)

    def _found(self, name: str | None) -> CheckpointPolicy:
        for candidate in (name, DEFAULT):
            found = self._mirror.get(candidate) if candidate else None
            if found is None:
                continue
            try:
                return read_kept(CheckpointPolicy, found.spec)
            except ValidationError as error:  # our webhook refuses such a one; it may have been away
                log.warning("policy cannot be read", policy=candidate, problem=str(error))
        return CheckpointPolicy()
