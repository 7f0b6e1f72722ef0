"""Wiring and graceful shutdown of one replica."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from cedana_sched.component.callers import Callers
from cedana_sched.component.configuration import CONFIGURATION_VARIABLE
from cedana_sched.component.health import Ready, serve_health
from cedana_sched.component.http_server import serve_http
from cedana_sched.component.process import run_with_graceful_stop, start
from cedana_sched.kube.client import Api
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.token_access import TokenAccess
from cedana_sched_webhooks import admission_types, pod_admission, validation
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.caches import AdmissionCaches, CacheInformers
from cedana_sched_webhooks.certificate_files import CertificateFileKeeper
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.holds.pod_eviction_hold import Marker, PodEvictionHold
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.own_certificates import OwnCertificateKeeper
from cedana_sched_webhooks.registrations import PODS, STATUSES, VALIDATE, paths_by_hook_name
from cedana_sched_webhooks.replica_numbers import ReplicaNumbers
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks, keep_running, load
from cedana_sched_webhooks.server import admission_application
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)


class CertificateKeeper(Protocol):
    """Keeps the serving certificate current."""

    async def run(self) -> None: ...


def create_handlers(
    caches: AdmissionCaches, configuration: Configuration, siblings: ReplicaNumbers, marker: Marker
) -> dict[str, Handler]:
    """Return our own handlers by path."""
    statuses = PodEvictionHold(caches, configuration, marker, now=SERVER_TIME.now)
    answers: dict[str, Handler] = {
        PODS: Endpoint(pod_admission.PodAdmission(caches, configuration, siblings).answer, admission_types.POD),
        STATUSES: Endpoint(_as_async_handler(statuses.answer), admission_types.STATUS),
    }
    for plural, check in validation.checks_by_kind(configuration.longest_deadline_seconds).items():
        answers[f"{VALIDATE}{plural}"] = _as_async_handler(functools.partial(validation.validate_write, check=check))
    return answers


def _as_async_handler(look: Callable[[Request], Answer]) -> Handler:
    """Wrap a synchronous handler, which only reads caches and never waits."""

    async def answer(request: Request) -> Answer:
        return look(request)

    return answer


async def serve(configuration: Configuration, api: Api, stop: asyncio.Event) -> None:
    """Run one replica until `stop` is set: it becomes unready first, and closes its listener later."""
    metrics = Metrics()
    informers = CacheInformers(api, configuration.longest_deadline_seconds, configuration.served_namespaces)
    clients = configuration.client_certificates
    certificate = ServingCertificate(metrics, clients.authorities if clients is not None else None)
    callers = Callers(certificate_names=clients.names if clients is not None else frozenset())
    marker = EvictionMarker(api, SERVER_TIME.now)
    siblings = ReplicaNumbers(api, looks_for_replaced=configuration.deletion_confirmation.other_pods)
    answers = create_handlers(informers.caches, configuration, siblings, marker)
    schedulers = _connect_scheduler_webhooks(configuration, api, informers.caches)
    for scheduler in schedulers:
        answers |= scheduler.handlers()
    keeper = _create_certificate_keeper(configuration, api, certificate, callers, paths_by_hook_name(answers), metrics)
    is_named_by_us = configuration.certificate_files is None  # else we write no configurations
    admissions = admission_application(answers, stop, metrics, callers if is_named_by_us else None)
    ready: dict[str, Ready] = {
        "objects": lambda: informers.unsynced_reason,
        "certificate": lambda: None if certificate.is_loaded else "there is none yet",
        "callers": lambda: None if callers.has_secret or not is_named_by_us else "no caller can be authenticated yet",
        "replica": lambda: "it ends" if stop.is_set() else None,
    }
    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(informers.run(), name="mirrors"),
            tasks.create_task(keeper.run(), name="certificate keeper"),
            tasks.create_task(marker.run(), name="eviction marks"),
            *(tasks.create_task(keep_running(one), name=f"webhooks of {one.name}") for one in schedulers),
        ]
        async with (
            serve_http(admissions, configuration.port, certificate.context) as port,  # before readiness is reported
            serve_health(
                configuration.operations_port,
                ready,
                metrics.registry,
                readable=TokenAccess(api) if configuration.metrics_authentication else None,
            ) as operations_port,
        ):
            log.info("listening", port=port, operations_port=operations_port)
            await stop.wait()
            await asyncio.sleep(configuration.drain_seconds)  # no signal shows when all API servers have switched
        for task in background:
            task.cancel()


def _connect_scheduler_webhooks(
    configuration: Configuration, api: Api, caches: AdmissionCaches
) -> list[SchedulerWebhooks]:
    shared = ReplicaAccess(api, caches, configuration.served_namespaces)
    return [
        load(name).connect(replace(shared, settings=configuration.adapter_settings.get(name, {})))
        for name in configuration.adapters
    ]


def _create_certificate_keeper(
    configuration: Configuration,
    api: Api,
    serving: ServingCertificate,
    callers: Callers,
    answered: Mapping[str, str],
    metrics: Metrics,
) -> CertificateKeeper:
    if configuration.certificate_files is not None:
        return CertificateFileKeeper(configuration.certificate_files, serving, metrics)
    service = f"{configuration.service}.{configuration.namespace}.svc"
    return OwnCertificateKeeper(
        api,
        configuration.certificates,
        namespace=configuration.namespace,
        service_names=(service, f"{service}.cluster.local"),
        serving=serving,
        callers=callers,
        hooks=answered,
        metrics=metrics,
        now=SERVER_TIME.now,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m cedana_sched_webhooks`."""
    parser = argparse.ArgumentParser(
        prog="cedana_sched_webhooks", description="The admission webhooks of cedana-sched."
    )
    parser.add_argument("--config", type=Path, help=f"JSON file (default: what {CONFIGURATION_VARIABLE} names)")
    parser.add_argument("--kubeconfig", help="where the pod's own ServiceAccount is not to be used")
    given = parser.parse_args(arguments)

    async def replica(configuration: Configuration, stopping: asyncio.Event) -> None:
        async with Api.open(given.kubeconfig) as api:
            await serve(configuration, api, stopping)

    def go(configuration: Configuration) -> int:
        return run_with_graceful_stop(functools.partial(replica, configuration))

    return start("webhooks", Configuration, go, given.config)
