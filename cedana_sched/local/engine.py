"""The embedded engine: one process that schedules jobs on this machine, with harmless preemption.

    API ──► scheduling loop ──► adapter ──► coordinator ──► agent ──► store
                 │    ▲                                       │
                 ▼    └───────────── events of runs ◄─────────┤
              runtime: one supervisor per run ◄───────────────┘

All durable state is in the state directory's journal, in the run directories and in the store: an engine that is
killed at any instant recovers every job at its next start, and the jobs keep running meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.local.adapter import EmbeddedAdapter
from cedana_sched.local.api import serve
from cedana_sched.local.api_service import EngineFacts, EngineService, terminal_snapshots_of_running_jobs
from cedana_sched.local.client import socket_path
from cedana_sched.local.configuration import Configuration, machine_capacity
from cedana_sched.local.hub import Hub
from cedana_sched.local.job_inspections import JobInspections
from cedana_sched.local.jobs.journal import SqliteJournal
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.local_node import NODE, BackgroundRunControl, LocalAgents, forward_run_events
from cedana_sched.local.periodic_job_snapshots import PeriodicJobSnapshots
from cedana_sched.local.record_cache import RecordCache
from cedana_sched.local.runs.job_restorer import JobRestorer
from cedana_sched.local.runs.launch_spec import LaunchSpec
from cedana_sched.local.runs.runtime import LocalRuntime
from cedana_sched.local.sealed_store_check import require_keys
from cedana_sched.local.state_directory_lock import lock_state_directory
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import CheckpointStep, Record, Restore
from cedana_sched.snapshot.criu_toolchain import OLDER_REMEDY, Origin, Toolchain, default_cache_dir, ensure_toolchain
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.store_presence import NOTES

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """The state directory, the configuration file and the store of an engine."""

    state_directory: Path
    config: Path | None
    """A TOML file; None is one group with the whole machine."""
    store: StorageConfig


def run(options: EngineOptions) -> None:
    """Run an engine until SIGINT or SIGTERM; jobs keep running without the engine.

    Raises:
        StateDirectoryError: another engine runs on the state directory.
        UsageError: the configuration is invalid.
        StoreDeniedError: the store cannot be used, or is sealed and its keys are not here.
        CedanaSchedError: the engine cannot run, for instance because its journal is corrupt.
    """
    try:
        with contextlib.suppress(KeyboardInterrupt), lock_state_directory(options.state_directory):
            asyncio.run(_run_until_signal(options))
    except BaseExceptionGroup as group:
        raise _first_product_error(group) or group from group


def _first_product_error(group: BaseExceptionGroup[BaseException]) -> CedanaSchedError | None:
    """Return the first `CedanaSchedError`, which a user can resolve; None if any other error is in the group."""
    error: BaseException = group
    if group.split(CedanaSchedError)[1] is not None:
        return None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, CedanaSchedError) else None


async def _run_until_signal(options: EngineOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    toolchain = await _toolchain()
    async with running_engine(options, toolchain) as socket:
        log.info("engine serves", socket=str(socket), store=str(options.store))
        await stop.wait()
        log.info("engine stops; jobs keep running")


async def _toolchain() -> Toolchain:
    toolchain = await asyncio.to_thread(ensure_toolchain, progress=log.info)
    if toolchain.origin is Origin.OLDER:
        log.warning("CRIU is another version's", version=toolchain.version, remedy=OLDER_REMEDY)
    return toolchain


@contextlib.asynccontextmanager
async def running_engine(options: EngineOptions, toolchain: Toolchain) -> AsyncIterator[Path]:
    """Run an engine inside the block; yields its socket's path. The state directory must be locked."""
    state = options.state_directory
    socket_path(state)
    configuration = read_configuration(options.config)
    store = await asyncio.to_thread(_open_store, options.store, state / NOTES)
    await require_keys(store, {group.namespace for group in configuration.groups})
    async with SqliteJournal.open(state) as journal, asyncio.TaskGroup() as tasks:
        engine = _Engine(options, configuration, journal, toolchain, tasks)
        async with engine.start_and_serve() as socket:
            yield socket
        engine.stop()


def read_configuration(path: Path | None) -> Configuration:
    """Return the configuration of a file, or the default configuration."""
    machine = machine_capacity(os.cpu_count() or 1, psutil.virtual_memory().total)
    return Configuration.read(path, machine) if path else Configuration.single_group(machine)


def _open_store(storage: StorageConfig, notes: Path) -> SnapshotStore:
    """Open the store; fails on permanent errors only, because an unavailable store may become available again."""
    return SnapshotStore.open(storage, notes=notes)


class _Engine:
    """The components of one engine, wired together."""

    def __init__(
        self,
        options: EngineOptions,
        configuration: Configuration,
        journal: SqliteJournal,
        toolchain: Toolchain,
        tasks: asyncio.TaskGroup,
    ) -> None:
        state = options.state_directory
        self._state = state
        self._outputs = state / "output"
        self._tasks = tasks
        self._owned: set[asyncio.Task[None]] = set()
        self._runtime = LocalRuntime(state, toolchain, self._job_spec_of, stall_seconds=configuration.stall_seconds)
        self._machine = BackgroundRunControl(self._runtime)
        clock = SystemClock()
        self._loop = SchedulingLoop(
            configuration,
            journal,
            self._machine,
            node=NODE,
            outputs=self._outputs,
            now=clock.now,
        )
        self._records = RecordCache(journal, self._on_records_saved)
        about = EngineFacts(os.getpid(), time.time(), state, options.store, toolchain.version)
        self._service = EngineService(about, self._loop, self._records, Hub())
        self._loop.add_watcher(self._service)
        self._snapshots = PeriodicJobSnapshots(self._loop, clock.now)
        self._loop.add_watcher(self._snapshots)
        self._agent = NodeAgent(
            runtime=self._runtime,
            restorer=JobRestorer(self._runtime),
            storage=options.store,
            toolchain=toolchain,
            cache_directory=default_cache_dir() / "fingerprints",  # beside the toolchain, which outlives engines
            state_directory=state,
            stall_seconds=configuration.stall_seconds,
        )
        self._inspections = JobInspections(self._agent.inspect, self._loop, NODE, clock.now)
        self._coordinator = Coordinator(
            journal=self._records,
            adapters={EmbeddedAdapter.name: EmbeddedAdapter(self._loop)},
            agents=LocalAgents(self._agent, self._service.on_progress),
            clock=clock,
            listener=self._service,
        )

    @contextlib.asynccontextmanager
    async def start_and_serve(self) -> AsyncIterator[Path]:
        await self._loop.load()
        alive = await self._runtime.adopt_previous_runs()
        log.info("engine recovered", jobs=len(self._loop.jobs), runs=len(alive))
        try:
            async with self._agent, self._coordinator:
                self._start_background_task(self._coordinator.wait_ended(), "coordinator")
                self._start_background_task(self._remove_leftovers(), "tidying")
                self._on_records_saved(
                    self._records.all()
                )  # the previous engine may have died before it processed them
                self._start_background_task(
                    forward_run_events(self._runtime, self._loop, self._records.newest_restore_of, self._inspections),
                    "what happens to runs",
                )
                self._start_background_task(self._inspections.run(), "looks at runs that have begun")
                self._start_background_task(self._loop.run(), "scheduling loop")
                await self._loop.resume_after_restart()
                self._start_background_task(self._snapshots.run(), "periodic snapshots")
                async with serve(self._service, self._state) as socket:
                    yield socket
        finally:
            await self._machine.close()
            await self._runtime.close()

    def stop(self) -> None:
        """Cancel background tasks; pending work is in the journal, and the next engine completes it."""
        for task in tuple(self._owned):
            task.cancel()

    def _start_background_task(self, work: Coroutine[None, None, None], name: str) -> None:
        task = self._tasks.create_task(work, name=name)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)

    async def _remove_leftovers(self) -> None:
        live = {record.uid for record in self._records.all() if isinstance(record, Restore) and not record.running_at}
        try:
            await self._agent.remove_stale_staging(live)
        except OSError as error:
            log.warning("what a killed engine left was not removed", error=str(error))

    async def _job_spec_of(self, workload: WorkloadRef) -> LaunchSpec:
        job, run_ = self._loop.find_active_run(workload.uid)
        description = job.description
        stdout, stderr = description.output_paths(run_.index)
        return LaunchSpec(
            argv=description.argv,
            stdout=Path(stdout),
            stderr=Path(stderr),
            engines_folder=self._outputs / description.uid,
            environment=description.env,
            directory=Path(description.cwd) if description.cwd else None,
            user=description.user,
            cpus=description.request.cpu / 1000,
            memory_bytes=description.request.memory,
            on_volume_change=description.policy.on_volume_change,
            has_terminal=description.tty,
        )

    def _on_records_saved(self, records: tuple[Record, ...]) -> None:
        self._service.on_records_saved(records)
        self._snapshots.on_records_saved(records)
        for checkpoint in terminal_snapshots_of_running_jobs(records):
            committed = checkpoint.step is CheckpointStep.READY
            if self._records.checkpoints_if_terminal(checkpoint.signal_uid) is not None:
                settled = self._loop.on_snapshot_terminal(checkpoint.signal_uid, committed=committed)
                self._start_background_task(settled, f"snapshot {checkpoint.signal_uid} settled")
