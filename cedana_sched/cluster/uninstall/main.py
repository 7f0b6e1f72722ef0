"""The uninstallation process: releases everything held before the Helm release is removed.

It runs as a hook of the chart. It deletes the webhooks first, so that nothing new is held. Then it replaces the
coordinator, cancels every preemption (frozen pods are thawed, unless committed and about to be evicted), and waits
until nothing is in flight, so that every gate is lifted and every relevant annotation removed. Restores that only wait,
as for the end of a pod that was deleted by force, are refused after a third of the time. Then it withdraws the
adapters, so that waiting schedulers proceed, and removes the finalizer of Checkpoints, which no component could do
later.
Finally the agents clean up their nodes, and objects whose kinds Helm keeps are deleted. Snapshots and their Checkpoints
stay; deleting a Checkpoint later leaves its snapshot in the store.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import structlog

from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.main import LEASE_NAME, own_identity
from cedana_sched.cluster.uninstall.checkpoint_finalizers import remove_finalizers
from cedana_sched.cluster.uninstall.node_cleanup import clean_up_nodes
from cedana_sched.cluster.uninstall.pending_pod_starts import wait_until_started
from cedana_sched.cluster.uninstall.records_in_flight import RecordsInFlight
from cedana_sched.cluster.uninstall.waiting_restores import WaitingRestores
from cedana_sched.coordinator.core import Reported
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.lease import LeaderElection
from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CHECKPOINT_STORAGES,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
)
from cedana_sched.model.errors import UsageError
from cedana_sched.model.records import Record

log = structlog.get_logger(__name__)

SPARE_SECONDS = 15.0
"""Rest of the hook's time after the last wait."""


@dataclass(frozen=True)
class ReleaseSettings:
    """Release values that the chart sets, as environment variables of the same names."""

    full_name: str
    """Full name of the chart's objects."""
    release_name: str
    deadline_seconds: float
    """Time limit of the hook."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> ReleaseSettings:
        """Read the variables; raise UsageError if one is missing, or is no number."""
        names = ("full_name", "release_name", "deadline_seconds")
        values = {name: environment.get(name.upper(), "") for name in names}
        for name, value in values.items():
            if not value or (name == "deadline_seconds" and not value.isdigit()):
                raise UsageError(name.upper(), value, "is not set as it should be", remedy="set it, as the chart does")
        return cls(values["full_name"], values["release_name"], float(values["deadline_seconds"]))


async def uninstall(configuration: CoordinatorConfiguration, release: ReleaseSettings) -> None:
    """Uninstall.

    Raises:
        ApiError: the API server refused, perhaps in a group; the release must not be removed yet.
        StillInFlightError: something did not end in time; the release must not be removed yet.
    """
    began, namespace, full_name = time.monotonic(), configuration.namespace, release.full_name
    until = began + release.deadline_seconds - SPARE_SECONDS
    async with Api.open() as api:
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            await api.delete(resource, full_name)
        log.info("webhooks removed: nothing new is held")
        try:
            coordinator = f"{full_name}-coordinator"
            await api.patch(DEPLOYMENTS, coordinator, namespace, {"spec": {"replicas": 0}})
        except AbsentError:
            log.info("there is no coordinator", name=f"{full_name}-coordinator")
        identity = own_identity()
        timing = configuration.lease.timing()
        election = LeaderElection(api, LEASE_NAME, namespace, identity, timing)
        await election.lead(
            lambda: _end_everything_in_flight(api, configuration, identity, release.deadline_seconds / 3, until)
        )
        await remove_finalizers(api)
        agents = f"app.kubernetes.io/instance={release.release_name},app.kubernetes.io/component=agent"
        await clean_up_nodes(api, namespace, agents, max(until - time.monotonic(), 0.0))
        await _delete_settings(api, release.release_name)


async def _end_everything_in_flight(
    api: Api, configuration: CoordinatorConfiguration, identity: str, patience: float, until: float
) -> None:
    in_flight = RecordsInFlight()

    def post(report: Reported) -> None:
        leader.coordinator.post(report)

    waiting = WaitingRestores(in_flight, post, patience, until)

    def on_records_saved(records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        in_flight.on_records_saved(records, forgotten)
        waiting.on_records_saved(records, forgotten)

    leader = LeadingCoordinator(api, configuration, identity, on_records_saved=on_records_saved)
    with closing(waiting):
        async with leader.run_coordinator() as coordinator:
            for hold in in_flight.current_holds():
                why = "the suite is being uninstalled"
                coordinator.post(Reported(hold.adapter, PreemptionCancelled(hold.uid, why)))
            await in_flight.wait_ended(until)
            await wait_until_started(leader.pods, patience)
            await in_flight.wait_ended(until)
            log.info("nothing is held any more")
            await leader.withdraw_adapters()


async def _delete_settings(api: Api, release: str) -> None:
    """Delete storages and policies of the release: Helm keeps their kinds, and so the objects."""
    ours = {"labelSelector": f"app.kubernetes.io/instance={release}"}
    for resource in (CHECKPOINT_POLICIES, CHECKPOINT_STORAGES):
        found, _ = await api.list_all(resource, None, ours, into=PartialObject)
        for one in found:
            await api.delete(resource, one.metadata.name, uid=one.metadata.uid)
