"""`python -m cedana_sched.cluster.uninstall`: lets go of everything that is held, before the release is removed.

It runs as a hook of the chart. The webhooks go first, so that nothing new is held. Then it takes the coordinator's
place, calls every preemption off (what is frozen runs on, unless it is committed and about to go), waits until
nothing is under way any more, and so every gate is open and every annotation of ours that matters is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys

import structlog

from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.cluster import logs
from cedana_sched.cluster.configuration import CoordinatorConfiguration, load
from cedana_sched.cluster.coordinator.leader import Leader
from cedana_sched.cluster.coordinator.main import LEASE_NAME, own_identity
from cedana_sched.cluster.process import run
from cedana_sched.coordinator.core import Reported
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.lease import LeaderElection
from cedana_sched.kube.resources import DEPLOYMENTS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from cedana_sched.model.errors import UsageError
from cedana_sched.model.records import Checkpoint, HoldStep, PreemptionHold, Record, RestoreStep

log = structlog.get_logger(__name__)

FULL_NAME_VARIABLE = "FULL_NAME"
"""Environment variable with the name that the chart gives its objects."""
_RESTING = {RestoreStep.RUNNING, RestoreStep.FAILED, RestoreStep.ENDED}


async def uninstall(configuration: CoordinatorConfiguration, full_name: str) -> None:
    """Let go of everything.

    Raises:
        ApiError: the API server refused; the release must not be removed yet.
    """
    async with Api.open() as api:
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            await api.delete(resource, full_name)
        log.info("webhooks removed: nothing new is held")
        try:
            coordinator = f"{full_name}-coordinator"
            await api.patch(DEPLOYMENTS, coordinator, configuration.namespace, {"spec": {"replicas": 0}})
        except AbsentError:
            log.info("there is no coordinator", name=f"{full_name}-coordinator")
        identity = own_identity()
        timing = configuration.lease.timing()
        election = LeaderElection(api, LEASE_NAME, configuration.namespace, identity, timing)
        await election.lead(lambda: _let_go(api, configuration, identity))


async def _let_go(api: Api, configuration: CoordinatorConfiguration, identity: str) -> None:
    under_way = UnderWay()
    leader = Leader(api, configuration, identity, recorded=under_way.recorded)
    async with leader.coordinating() as coordinator:
        for hold in under_way.holds():
            why = "the suite is being uninstalled"
            coordinator.post(Reported(hold.adapter, PreemptionCancelled(hold.uid, why)))
        await under_way.ended.wait()
    log.info("nothing is held any more")


class UnderWay:
    """What the coordinator has not finished; `ended` is set while that is nothing."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self.ended = asyncio.Event()

    def holds(self) -> list[PreemptionHold]:
        return [record for record in self._records.values() if isinstance(record, PreemptionHold)]

    def recorded(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        """See `Recorded`."""
        for record in (*records, *forgotten):
            self._records.pop(record.uid, None)
            if not is_at_rest(record):
                self._records[record.uid] = record
        if self._records:
            self.ended.clear()
        else:
            self.ended.set()


def is_at_rest(record: Record) -> bool:
    """Whether nothing needs to be done for it; a workload that runs needs nothing."""
    match record:
        case Checkpoint():
            return record.settled
        case PreemptionHold():
            return record.step is HoldStep.RELEASED
        case _:
            return record.step in _RESTING


def _full_name() -> str:
    full_name = os.environ.get(FULL_NAME_VARIABLE, "")
    if not full_name:
        raise UsageError(FULL_NAME_VARIABLE, full_name, "is not set", remedy="set it, as the chart does")
    return full_name


def main() -> int:
    """Read the configuration, and let go."""
    try:
        configuration = load(CoordinatorConfiguration)
        full_name = _full_name()
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure("uninstall", configuration.log)
    return run(lambda: uninstall(configuration, full_name))


if __name__ == "__main__":
    sys.exit(main())
