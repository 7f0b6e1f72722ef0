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

from cedana_sched.agent.node import NodeAgent
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.local.adapter import EmbeddedAdapter
from cedana_sched.local.api import serve
from cedana_sched.local.client import socket_path
from cedana_sched.local.configuration import Configuration, machine_capacity
from cedana_sched.local.hub import Hub
from cedana_sched.local.jobs.journal import SqliteJournal
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.machine import NODE, LocalAgents, Machine, tell_of_runs
from cedana_sched.local.records import Records
from cedana_sched.local.runs.job_restorer import JobRestorer
from cedana_sched.local.runs.job_task import JobSpec
from cedana_sched.local.runs.runtime import LocalRuntime
from cedana_sched.local.sealed_start import require_keys
from cedana_sched.local.service import About, EngineService, settled_snapshots
from cedana_sched.local.state_directory import locked
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import CheckpointStep, Record, Restore
from cedana_sched.snapshot.toolchain import OLDER_REMEDY, Origin, Toolchain, default_cache_dir, ensure_toolchain
from cedana_sched.store.location import StorageConfig
from cedana_sched.store.mark import NOTES
from cedana_sched.store.snapshots import SnapshotStore

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
        with contextlib.suppress(KeyboardInterrupt), locked(options.state_directory):
            asyncio.run(_until_told_to_stop(options))
    except BaseExceptionGroup as group:
        raise _first_of_ours(group) or group from group


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> CedanaSchedError | None:
    """Return the first `CedanaSchedError`, which a user can resolve; None if any other error is in the group."""
    error: BaseException = group
    if group.split(CedanaSchedError)[1] is not None:
        return None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, CedanaSchedError) else None


async def _until_told_to_stop(options: EngineOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    toolchain = await _toolchain()
    async with running(options, toolchain) as socket:
        log.info("engine serves", socket=str(socket), store=str(options.store))
        await stop.wait()
        log.info("engine stops; jobs keep running")


async def _toolchain() -> Toolchain:
    toolchain = await asyncio.to_thread(ensure_toolchain, progress=log.info)
    if toolchain.origin is Origin.OLDER:
        log.warning("CRIU is another version's", version=toolchain.version, remedy=OLDER_REMEDY)
    return toolchain


@contextlib.asynccontextmanager
async def running(options: EngineOptions, toolchain: Toolchain) -> AsyncIterator[Path]:
    """Run an engine inside the block; yields its socket's path. Precondition: the state directory is `locked`."""
    state = options.state_directory
    socket_path(state)
    configuration = read_configuration(options.config)
    store = await asyncio.to_thread(_required_store, options.store, state / NOTES)
    await require_keys(store, {group.namespace for group in configuration.groups})
    async with SqliteJournal.open(state) as journal, asyncio.TaskGroup() as tasks:
        engine = _Engine(options, configuration, journal, toolchain, tasks)
        async with engine.running() as socket:
            yield socket
        engine.stop()


def read_configuration(path: Path | None) -> Configuration:
    """Return the configuration of a file, or the default configuration."""
    machine = machine_capacity(os.cpu_count() or 1, psutil.virtual_memory().total)
    return Configuration.read(path, machine) if path else Configuration.single_group(machine)


def _required_store(storage: StorageConfig, notes: Path) -> SnapshotStore:
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
        self._tasks = tasks
        self._owned: set[asyncio.Task[None]] = set()
        self._runtime = LocalRuntime(state, toolchain, self._job_of, stall_seconds=configuration.stall_seconds)
        self._machine = Machine(self._runtime)
        clock = SystemClock()
        self._loop = SchedulingLoop(
            configuration,
            journal,
            self._machine,
            node=NODE,
            outputs=state / "output",
            now=clock.now,
        )
        self._records = Records(journal, self._recorded)
        about = About(os.getpid(), time.time(), state, options.store, toolchain.version)
        self._service = EngineService(about, self._loop, self._records, Hub())
        self._loop.watch(self._service)
        self._agent = NodeAgent(
            runtime=self._runtime,
            restorer=JobRestorer(self._runtime),
            storage=options.store,
            toolchain=toolchain,
            cache_directory=default_cache_dir() / "fingerprints",  # beside the toolchain, which outlives engines
            state_directory=state,
            stall_seconds=configuration.stall_seconds,
        )
        self._coordinator = Coordinator(
            journal=self._records,
            adapters={EmbeddedAdapter.name: EmbeddedAdapter(self._loop)},
            agents=LocalAgents(self._agent, self._service.progressed),
            clock=clock,
            listener=self._service,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Path]:
        await self._loop.load()
        alive = await self._runtime.adopt()
        log.info("engine recovered", jobs=len(self._loop.jobs), runs=len(alive))
        try:
            async with self._agent, self._coordinator:
                self._own(self._coordinator.ended(), "coordinator")
                self._own(self._tidy(), "tidying")
                self._recorded(self._records.all())  # the previous engine may have died before it processed them
                self._own(tell_of_runs(self._runtime, self._loop, self._records.restore_of), "what happens to runs")
                self._own(self._loop.run(), "scheduling loop")
                await self._loop.resume()
                async with serve(self._service, self._state) as socket:
                    yield socket
        finally:
            await self._machine.close()
            await self._runtime.close()

    def stop(self) -> None:
        """Cancel background tasks; pending work is in the journal, and the next engine completes it."""
        for task in tuple(self._owned):
            task.cancel()

    def _own(self, work: Coroutine[None, None, None], name: str) -> None:
        task = self._tasks.create_task(work, name=name)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)

    async def _tidy(self) -> None:
        live = {record.uid for record in self._records.all() if isinstance(record, Restore) and not record.running_at}
        try:
            await self._agent.tidy(live)
        except OSError as error:
            log.warning("what a killed engine left was not removed", problem=str(error))

    async def _job_of(self, workload: WorkloadRef) -> JobSpec:
        job, run_ = self._loop.run_of(workload.uid)
        description = job.description
        stdout, stderr = description.output(run_.index)
        return JobSpec(
            argv=description.argv,
            stdout=Path(stdout),
            stderr=Path(stderr),
            environment=description.env,
            directory=Path(description.cwd) if description.cwd else None,
            user=description.user,
            cpus=description.request.cpu / 1000,
            memory_bytes=description.request.memory,
        )

    def _recorded(self, records: tuple[Record, ...]) -> None:
        self._service.recorded(records)
        for checkpoint in settled_snapshots(records):
            committed = checkpoint.step is CheckpointStep.READY
            if self._records.settled(checkpoint.signal_uid) is not None:
                settled = self._loop.snapshot_settled(checkpoint.signal_uid, committed=committed)
                self._own(settled, f"snapshot {checkpoint.signal_uid} settled")
