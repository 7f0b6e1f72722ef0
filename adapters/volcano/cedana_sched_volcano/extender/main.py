"""Wiring and graceful shutdown of one replica of the extender."""

from __future__ import annotations

import argparse
import asyncio
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from cedana_sched.component.configuration import CONFIGURATION_VARIABLE
from cedana_sched.component.health import Readable, Ready, serve_health
from cedana_sched.component.http_server import serve_http
from cedana_sched.component.process import run_with_graceful_stop, start
from cedana_sched.kube.client import Api
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.token_access import TokenAccess
from cedana_sched_volcano.extender.address_secret import AddressKeeper
from cedana_sched_volcano.extender.cached_pod_states import CachedPodStates
from cedana_sched_volcano.extender.claims import Claims
from cedana_sched_volcano.extender.configuration import Configuration
from cedana_sched_volcano.extender.metrics import Metrics
from cedana_sched_volcano.extender.pod_states_interface import ProtectedPodStates
from cedana_sched_volcano.extender.server import extender_application

log = structlog.get_logger(__name__)


class RunnablePodStates(ProtectedPodStates, Protocol):
    """Pod states with caches to run."""

    @property
    def unsynced_reason(self) -> str | None:
        """What has not synced yet, and why."""
        ...

    async def run(self) -> None:
        """Run the informers and write marks, forever."""
        ...


async def serve(
    configuration: Configuration,
    pod_states: RunnablePodStates,
    address: AddressKeeper,
    metrics: Metrics,
    stop: asyncio.Event,
    readable: Readable | None = None,
) -> None:
    """Run one replica until `stop` is set: it becomes unready first, and closes its listener later.

    `readable` authorizes access to its metrics; see `health.serve_health`.
    """
    claims = Claims(time.monotonic, steering=configuration.victim_steering)
    metrics.preemptors.set_function(claims.count_active_preemptors)
    application = extender_application(
        pod_states, claims, stop, metrics, address.callers, timeout_seconds=configuration.timeout_seconds
    )
    ready: dict[str, Ready] = {
        "objects": lambda: None if pod_states.is_synced else pod_states.unsynced_reason,
        "address": lambda: None if address.callers.has_secret else "no caller can be authenticated yet",
        "replica": lambda: "it ends" if stop.is_set() else None,
    }
    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(pod_states.run(), name="pod states"),
            tasks.create_task(address.run(), name="address keeper"),
        ]
        async with (
            serve_http(application, configuration.port) as port,  # before readiness is reported
            serve_health(configuration.operations_port, ready, metrics.registry, readable=readable) as operations_port,
        ):
            log.info("listening", port=port, operations_port=operations_port, steering=configuration.victim_steering)
            await stop.wait()
            await asyncio.sleep(configuration.drain_seconds)  # no signal shows when all callers have switched
        for task in background:
            task.cancel()


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m cedana_sched_volcano.extender`."""
    parser = argparse.ArgumentParser(
        prog="cedana_sched_volcano.extender", description="Serves Volcano's extender plugin: which pods it may evict."
    )
    parser.add_argument("--config", type=Path, help=f"JSON file (default: what {CONFIGURATION_VARIABLE} names)")
    parser.add_argument("--kubeconfig", help="where the pod's own ServiceAccount is not to be used")
    given = parser.parse_args(arguments)

    async def replica(configuration: Configuration, stopping: asyncio.Event) -> None:
        async with Api.open(given.kubeconfig) as api:
            pod_states = CachedPodStates(
                api,
                longest_deadline_seconds=configuration.longest_deadline_seconds,
                served=configuration.served_namespaces,
            )
            metrics = Metrics()
            address = AddressKeeper(
                api, configuration.secret, configuration.namespace, metrics.address_problems, SERVER_TIME.now
            )
            readable = TokenAccess(api) if configuration.metrics_authentication else None
            await serve(configuration, pod_states, address, metrics, stopping, readable)

    def go(configuration: Configuration) -> int:
        return run_with_graceful_stop(functools.partial(replica, configuration))

    return start("volcano-extender", Configuration, go, given.config)
