"""Probes every CheckpointStorage before it is needed, and writes the result to its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from pydantic import ValidationError

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.coordinator.scoped_storage_condition import SCOPED, ScopedConditionProbe
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.own_kinds.cached_storage import CachedStorage
from cedana_sched.kube.resources import CHECKPOINT_STORAGES
from cedana_sched.kube.response_decoding import UnreadableSink
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.model.objects.base import Condition, ConditionStatus, parse_stored_object, utc_datetime_of
from cedana_sched.model.objects.checkpoint_storage import CheckpointStorageSpec, CheckpointStorageStatus
from cedana_sched.model.texts import truncate_text
from cedana_sched.store.check import StoreReport
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig

log = structlog.get_logger(__name__)

PROBE_SECONDS = 300.0
READY = "Ready"

Probe = Callable[[StorageConfig], StoreReport | None]


def measure_storage(config: StorageConfig) -> StoreReport:
    """Write, read and delete a sample of 32 MiB; see `SnapshotStore.check`."""
    return SnapshotStore.open(config).check_storage()


def probe_briefly(config: StorageConfig) -> None:
    """Check with a few small requests that it is still usable: storage and requests cost money."""
    SnapshotStore.open(config).probe_access()


class StorageProbe:
    """Controller of CheckpointStorages. Run `run` as a task. `first` and `later` block; they run in threads."""

    def __init__(
        self,
        api: Api,
        first: Probe = measure_storage,
        later: Probe = probe_briefly,
        scoping: ScopedConditionProbe | None = None,
        unreadable: UnreadableSink | None = None,
    ) -> None:
        self._api = api
        self._scoping = scoping or ScopedConditionProbe()
        self._first = first
        self._later = later
        self._informer = Informer(Watch(api, CHECKPOINT_STORAGES, CachedStorage), unreadable)
        self._threads = StoreThreads()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._since: dict[tuple[str, str], tuple[ConditionStatus, float]] = {}
        """By name of the storage and condition type: status, and since when."""

    async def run(self) -> None:
        """Probe each storage when it appears or changes, then every `PROBE_SECONDS`, forever."""
        async with asyncio.TaskGroup() as group:

            def on_storage_change(before: CachedStorage | None, now: CachedStorage | None) -> None:
                known = now or before
                if known is None or (before and now and before.metadata.generation == now.metadata.generation):
                    return
                if task := self._probes.pop(known.metadata.name, None):
                    task.cancel()
                if now is not None:
                    name = now.metadata.name
                    self._probes[name] = group.create_task(self._keep_trying(now), name=f"probe of {name}")

            self._informer.subscribe(on_storage_change)
            await self._informer.run()

    async def _keep_trying(self, storage: CachedStorage) -> None:
        probe = self._first
        measured = ""
        while True:
            status, measured = await self._probe_storage(storage, probe, measured)
            if measured:
                probe = self._later
            try:
                body = {"metadata": {"uid": storage.metadata.uid}, "status": status.to_json()}
                await self._api.patch(CHECKPOINT_STORAGES, storage.metadata.name, None, body, subresource="status")
            except ApiError as error:
                log.warning("storage's state not written", storage=storage.metadata.name, error=error.message)
            await asyncio.sleep(PROBE_SECONDS)

    async def _probe_storage(
        self, storage: CachedStorage, probe: Probe, measured: str
    ) -> tuple[CheckpointStorageStatus, str]:
        """Return the current status, and the measurement from when it was first usable."""
        scoped: tuple[Condition, ...] = ()
        try:
            config = storage_configuration_of(storage.spec)
            if config.path is not None:
                sentence = "a folder of the nodes is not tried from here"
                return self._build_status(storage, "Unknown", "VisibleToNodesOnly", sentence), sentence
            scoped = await self._scoped_conditions(storage, config)
            report = await self._threads.run(probe, config)
        except CedanaSchedError as error:
            log.warning("storage cannot be used", storage=storage.metadata.name, error=str(error))
            reason = type(error).__name__.removesuffix("Error")
            return self._build_status(storage, "False", reason, str(error), *scoped), measured
        except Exception as error:  # a defect of ours or of the store's client must not end the coordinator
            log.exception("storage cannot be tried", storage=storage.metadata.name)
            return self._build_status(
                storage, "False", "NotTried", f"it cannot be tried: {error!r:.500}", *scoped
            ), measured
        if report is not None:
            measured = _describe_report(report)
        return self._build_status(storage, "True", "Probed", measured, *scoped), measured

    async def _scoped_conditions(self, storage: CachedStorage, config: StorageConfig) -> tuple[Condition, ...]:
        """Return the condition; none for a folder, which has no keys."""
        if config.s3 is None:
            return ()
        found = await self._threads.run(self._scoping.evaluate, config.s3)
        return (
            self._build_condition(
                storage, SCOPED, found.status, found.reason, found.message, now=SERVER_TIME.seconds()
            ),
        )

    def _build_status(
        self, storage: CachedStorage, status: ConditionStatus, reason: str, message: str, *others: Condition
    ) -> CheckpointStorageStatus:
        now = SERVER_TIME.seconds()
        ready = self._build_condition(storage, READY, status, reason, message, now=now)
        return CheckpointStorageStatus(last_probe_time=utc_datetime_of(now), conditions=(ready, *others))

    def _build_condition(
        self, storage: CachedStorage, kind: str, status: ConditionStatus, reason: str, message: str, *, now: float
    ) -> Condition:
        before, since = self._since.get((storage.metadata.name, kind), (status, now))
        if before != status:
            since = now
        self._since[storage.metadata.name, kind] = (status, since)
        return Condition(
            type=kind,
            status=status,
            reason=reason,
            message=truncate_text(message),
            last_transition_time=utc_datetime_of(since),
        )


def storage_configuration_of(spec: Object) -> StorageConfig:
    """Return the location of a CheckpointStorage. Keys come from our own environment.

    Raises:
        UsageError: names the field, its value and the remedy.
    """
    try:
        written = parse_stored_object(CheckpointStorageSpec, spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, ("spec", *first["loc"])))
        raise UsageError(field, first["input"], "is not valid", remedy=first["msg"]) from None
    if written.posix is not None:
        return StorageConfig.load({"path": written.posix.path})
    if written.s3 is None:
        raise UsageError("spec", spec, "names no place", remedy="give s3 or posix")
    s3 = written.s3
    values = {"bucket": s3.bucket, "prefix": s3.prefix, "region": s3.region, "allow_http": s3.allow_http}
    if s3.endpoint:
        values["endpoint"] = s3.endpoint
    return StorageConfig.load({"s3": values})


def _describe_report(report: StoreReport) -> str:
    mib = 1 << 20
    return (
        f"{report.place}: writes {report.write_bytes_per_second / mib:.0f} MiB/s, reads"
        f" {report.read_bytes_per_second / mib:.0f} MiB/s, {report.round_trip_seconds * 1000:.0f} ms a round trip,"
        f" commits by {report.commit_protocol}"
    )
