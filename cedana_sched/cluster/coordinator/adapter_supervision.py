"""Keeps scheduler adapters running; an absent scheduler does not affect the other adapters.

If an adapter's scheduler is not installed or was removed, or RBAC forbids the adapter's reads, before or during its
run, the log, an Event on our Deployment and a metric report it. The adapter is retried until it runs.
"""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from cedana_sched.adapter.cluster_contract import ClusterAdapter, Watching
from cedana_sched.component.isolated_task import run_in_own_task
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiError
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import DEPLOYMENTS
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.retrying import WATCHES, Backoff

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0
"""Interval between two checks of an adapter's watches; shorter refusals may go unnoticed."""
REASON = "SchedulerNotFound"
NOT_FOLLOWED = "SchedulerNotWatched"
FAILED = "AdapterFailed"


class AdapterMetrics:
    """The metrics of adapters."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._up = Gauge(
            "cedana_sched_adapter_up",
            "1 while this replica follows the scheduler; 0 while a kind that it watches is not served or not readable.",
            ["adapter"],
            registry=registry,
        )

    def set_adapter_up(self, adapter: str, *, up: bool) -> None:
        self._up.labels(adapter).set(1 if up else 0)


class OwnDeployment:
    """Our own Deployment, the target of Events about ourselves. Without a name no Event is published."""

    def __init__(self, api: Api, events: EventRecorder, namespace: str, name: str | None) -> None:
        self._api = api
        self._events = events
        self._namespace = namespace
        self._name = name

    async def publish_warning(self, reason: str, message: str) -> None:
        """Publish a warning; log it if it cannot be published."""
        if self._name is None:
            return
        try:
            found = await self._api.get(DEPLOYMENTS, self._name, self._namespace, into=PartialObject)
        except ApiError as error:
            log.info("event not published", reason=reason, error=error.message)
            return
        involved = DEPLOYMENTS.reference(self._name, self._namespace, found.metadata.uid)
        self._events.record_event(ObjectEvent(involved, reason, message, warning=True))


async def keep_running(name: str, adapter: ClusterAdapter, deployment: OwnDeployment, metrics: AdapterMetrics) -> None:
    """Run an adapter, forever; if its scheduler is absent, or the API server refuses, report that and retry.

    A defect is reported likewise, and ends neither the coordinator nor the other adapters.
    """
    backoff = Backoff(WATCHES)
    while True:
        pause = backoff.next_pause()
        metrics.set_adapter_up(name, up=True)
        try:
            await run_in_own_task(_run(name, adapter, deployment, metrics))
        except* AbsentError as group:
            metrics.set_adapter_up(name, up=False)
            why = _first_error_text(group)
            message = f"{name} is enabled, but its kinds are not served: {why}; install it, or disable {name}"
            log.warning("scheduler not found, trying again", adapter=name, error=message, pause_seconds=pause)
            await deployment.publish_warning(REASON, message)
        except* CedanaSchedError as group:
            metrics.set_adapter_up(name, up=False)
            message = f"{name} cannot be followed: {_first_error_text(group)}"
            log.warning("scheduler not followed, trying again", adapter=name, error=message, pause_seconds=pause)
            await deployment.publish_warning(NOT_FOLLOWED, message)
        except* Exception as group:  # a defect triggered by one scheduler's object must not end the coordinator
            metrics.set_adapter_up(name, up=False)
            log.exception("adapter failed, starting it again", adapter=name, pause_seconds=pause)
            await deployment.publish_warning(
                FAILED, f"the adapter {name} has failed, a defect, and is started again: {_first_error_text(group)}"
            )
        await asyncio.sleep(pause)


async def _run(name: str, adapter: ClusterAdapter, deployment: OwnDeployment, metrics: AdapterMetrics) -> None:
    """Run it once. A refused watch is reported, but does not end the run, because other watches may work."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(adapter.run(), name=f"run of {name}")
        if isinstance(adapter, Watching):
            looking = _report_refused_watches(name, adapter, deployment, metrics)
            looks = group.create_task(looking, name=f"watches of {name}")
            running.add_done_callback(lambda _: looks.cancel())


async def _report_refused_watches(
    name: str, adapter: Watching, deployment: OwnDeployment, metrics: AdapterMetrics
) -> None:
    was_refused = False
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        refused = next((why for informer in adapter.informers if (why := informer.refusal_reason) is not None), None)
        metrics.set_adapter_up(name, up=refused is None)
        if refused is not None and not was_refused:
            message = f"{name} cannot be followed: {refused}"
            log.warning("scheduler not followed, its watch is tried again", adapter=name, error=message)
            await deployment.publish_warning(NOT_FOLLOWED, message)
        elif refused is None and was_refused:
            log.info("scheduler followed again", adapter=name)
        was_refused = refused is not None


def _first_error_text(group: BaseExceptionGroup[Exception]) -> str:
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first_error_text(error)
    return error.message if isinstance(error, CedanaSchedError) else repr(error)
