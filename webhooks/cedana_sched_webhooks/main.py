"""Wires one replica together, and ends it in good order."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from cedana_sched.kube.client import Api
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched_webhooks import pods, validation
from cedana_sched_webhooks.certificate_files import CertificateFileKeeper
from cedana_sched_webhooks.configuration import CONFIGURATION_VARIABLE, Configuration, Log
from cedana_sched_webhooks.holds.first_requests import FirstRequests
from cedana_sched_webhooks.holds.jobs import JobHold
from cedana_sched_webhooks.knowledge import Knowledge, Mirrors
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.own_certificates import OwnCertificateKeeper
from cedana_sched_webhooks.server import Handler, Readiness, admission_application, listening, operations_application
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)

PODS: Final = "/mutate/pods"
JOBS: Final = "/mutate/jobs"
VALIDATE: Final = "/validate/"


class Keeper(Protocol):
    """Keeps the certificate that is served."""

    async def run(self) -> None: ...


def handlers(knowledge: Knowledge, configuration: Configuration) -> dict[str, Handler]:
    """Who answers, by path."""
    jobs = JobHold(knowledge, configuration, first_requests=FirstRequests(time.monotonic), now=_now)
    answers: dict[str, Handler] = {
        PODS: functools.partial(pods.answer, knowledge=knowledge, configuration=configuration),
        JOBS: jobs.answer,
    }
    for plural, check in validation.CHECKS.items():
        answers[f"{VALIDATE}{plural}"] = functools.partial(validation.answer, check=check)
    return answers


async def serve(configuration: Configuration, api: Api, stop: asyncio.Event) -> None:
    """One replica, until `stop` is set: then it is not ready, and a while later listens no more."""
    metrics, mirrors = Metrics(), Mirrors(api)
    serving = ServingCertificate(metrics)
    keeper = _keeper(configuration, api, serving, metrics)
    readiness = Readiness(lambda: mirrors.synced, lambda: serving.loaded)
    admissions = admission_application(handlers(mirrors.knowledge, configuration), readiness, metrics)
    operations = operations_application(readiness, metrics)
    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(mirrors.run(), name="mirrors"),
            tasks.create_task(keeper.run(), name="certificate keeper"),
        ]
        async with (
            listening(operations, configuration.operations_port) as operations_port,
            listening(admissions, configuration.port, serving) as port,
        ):
            log.info("listening", port=port, operations_port=operations_port)
            await stop.wait()
            readiness.end()
            await asyncio.sleep(configuration.drain_seconds)  # nobody tells us when the last one has looked elsewhere
        for task in background:
            task.cancel()


def _keeper(configuration: Configuration, api: Api, serving: ServingCertificate, metrics: Metrics) -> Keeper:
    if configuration.certificate_files is not None:
        return CertificateFileKeeper(configuration.certificate_files, serving, metrics)
    service = f"{configuration.service}.{configuration.namespace}.svc"
    return OwnCertificateKeeper(
        api,
        configuration.certificates,
        namespace=configuration.namespace,
        service_names=(service, f"{service}.cluster.local"),
        serving=serving,
        metrics=metrics,
        now=_now,
    )


def _now() -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC)


async def _run(configuration: Configuration, kubeconfig: str | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Api.open(kubeconfig) as api:
        await serve(configuration, api, stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m cedana_sched_webhooks`."""
    parser = argparse.ArgumentParser(
        prog="cedana_sched_webhooks", description="The admission webhooks of cedana-sched."
    )
    file = os.environ.get(CONFIGURATION_VARIABLE, "webhooks.json")
    parser.add_argument("--config", type=Path, default=file, help="JSON file (default: %(default)s)")
    parser.add_argument("--kubeconfig", help="where the pod's own ServiceAccount is not to be used")
    given = parser.parse_args(arguments)
    _log(Log())
    outcome = 0
    try:
        configuration = Configuration.read(given.config)
        _log(configuration.log)
        asyncio.run(_run(configuration, given.kubeconfig))
    except* CedanaSchedError as errors:
        for error in _flat(errors):
            log.error("cannot serve", problem=str(error))  # noqa: TRY400  # a sentence, no traceback
        outcome = 1
    return outcome


def _log(wanted: Log) -> None:
    processors: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    if wanted.format == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=False))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, wanted.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _flat(errors: BaseExceptionGroup[CedanaSchedError]) -> Iterator[CedanaSchedError]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error
