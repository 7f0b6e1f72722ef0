"""The runtime of jobs on this machine: implements the agent's runtime with one supervisor process per run.

The engine may be killed at any instant; the supervisors and their jobs keep running, and `adopt_previous_runs` finds
them by their run directories. `changes` yields all events of runs, including those from while no engine ran, and
repeats them after each start until the engine has persisted the end of the run and calls `discard_run`.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog
from msgspec.structs import replace

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import (
    UNKNOWN_ORIGIN,
    RunningContainer,
    RunningWorkload,
    SnapshotOrigin,
    on_change_of,
)
from cedana_sched.local.runs.cgroup_site import CgroupSite
from cedana_sched.local.runs.held_files import HeldFilesRecorder
from cedana_sched.local.runs.launch_spec import (
    LaunchSpec,
    RestoreTask,
    create_launch_task,
    create_output_directories,
    install_tini,
)
from cedana_sched.local.runs.restore_preparation import preload_image_decoder, prepare_images, require_mounts
from cedana_sched.local.runs.run_directory import ExitRecord, Failure, RunDirectory, RunSpec
from cedana_sched.local.runs.supervision import SupervisedRun
from cedana_sched.local.runs.supervisor_launcher import SupervisorError, SupervisorLauncher
from cedana_sched.model.errors import CedanaSchedError, RestoreError, SnapshotError, UsageError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.cgroups import Cgroup, Usage
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.external_mounts import Externals, host_externals
from cedana_sched.snapshot.job_terminal import terminate_session
from cedana_sched.snapshot.launch import Job
from cedana_sched.snapshot.restore import RestoreInterruptedError, RestoreRequest

log = structlog.get_logger(__name__)

_PREPARATION_SECONDS = 30.0
"""Bound of the preparation of a restore: a file system whose server is gone never answers."""
_TERMINAL = "terminal"
"""The restore fact whether the processes have a terminal; a job whose id continues others' snapshots may differ."""


class RunBegan(msgspec.Struct, frozen=True):
    """The run's processes have started. `notes` describe settings that could not be applied, such as a limit."""

    run: str
    at: float
    restored: bool
    cold_because: str | None = None
    """Why the run was started cold although a snapshot was expected."""
    notes: tuple[str, ...] = ()


class RunEnded(msgspec.Struct, frozen=True):
    """Nothing of the run is left but its output and this record."""

    run: str
    record: ExitRecord


RunChange = RunBegan | RunEnded


class LocalRuntime:
    """The runs of one engine. `job_of` resolves a workload to its spec at each start.

    Call `adopt_previous_runs()` before any other method; `close()` leaves the jobs running.
    """

    def __init__(
        self,
        state_directory: Path,
        toolchain: Toolchain,
        job_of: Callable[[WorkloadRef], Awaitable[LaunchSpec]],
        site: CgroupSite | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._directory = state_directory / "runs"
        self._toolchain = toolchain
        self._tini = install_tini(toolchain.tini, state_directory / "programs")
        self._job_of = job_of
        self._site = site or CgroupSite.of_this_machine()
        self._supervisors = SupervisorLauncher(self._site.supervisors_group())
        self._beginning = asyncio.Lock()
        self._starts: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._preparing: dict[str, StoreThreads] = {}
        self._runs: dict[str, SupervisedRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: asyncio.Queue[RunChange] = asyncio.Queue()
        self._held_files = HeldFilesRecorder()

    async def adopt_previous_runs(self) -> tuple[str, ...]:
        """Adopt the runs of a previous engine; return the uids of runs whose supervisor is alive.

        `changes` yields the end of runs that ended meanwhile, or whose supervisor was killed.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._site.remove_unused_groups)
        await self._supervisors.start_forkserver()
        await asyncio.to_thread(preload_image_decoder, self._toolchain)
        alive = []
        for path in sorted(self._directory.iterdir()):
            directory = RunDirectory(path)
            spec, state = directory.read_spec(), directory.read_state()
            if directory.discard_unbegun() or spec is None:  # the coordinator repeats the order to start the run
                continue
            if state is not None and state.shim.alive():
                alive.append(path.name)
            run = SupervisedRun(directory, spec)
            run.read_state()  # the first order needs the state before the watch task runs
            self._start_watching(run, None)
        return tuple(alive)

    async def changes(self) -> AsyncIterator[RunChange]:
        """Yield the events of runs in order, for a single reader."""
        while True:
            yield await self._changes.get()

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        """Return the workload's processes; None if the workload has no live processes."""
        run = self._runs.get(workload.uid)
        if run is None or run.ended.is_set() or run.state is None or run.state.init is None:
            return None
        if not run.state.init.alive():
            return None
        tree = RunningContainer(
            root_pid=run.state.init.pid,
            freezer=run.group.freezer_directory,
            externals=Externals(run.spec.mounts).criu_external_values(),
            is_restored=run.spec.is_restore,
        )
        if freezer.is_frozen(tree.freezer):
            tree = await self._held_files.add_note(run.uid, tree, run.spec.mounts)
        return RunningWorkload(
            (tree,),
            restore_facts={"mounts": list(run.spec.mounts), _TERMINAL: run.spec.terminal_output is not None},
            is_restored=run.spec.is_restore,
        )

    async def kill_frozen(
        self,
        checkpoint_uid: str,  # noqa: ARG002  # `undo_kill` is a no-op
        workload: WorkloadRef,
        *,
        insist: bool = False,  # noqa: ARG002  # the kill never waits for the owner
    ) -> bool:
        """Kill the workload's processes now.

        Raises:
            FreezerError: some process did not end in time.
        """
        if (run := self._runs.get(workload.uid)) is not None and run.has_started and not run.ended.is_set():
            await asyncio.to_thread(freezer.kill, run.group.freezer_directory)
        return True

    async def undo_kill(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """Do nothing: `kill_frozen` kills at once, so no process is left to spare."""

    async def start_cold(self, workload: WorkloadRef, why: str | None) -> None:
        """Start the workload cold. A failure to start is published in `changes` as the run's end."""
        await self._discard_restore(workload.uid)
        try:
            async with self._start_lock(workload.uid):
                run = self._runs.get(workload.uid) or await self._begin_cold(workload, why)
        except OSError as error:  # disk full: the end cannot be persisted, but is published
            failure = Failure(f"the run cannot be prepared: {error}", "make room in the state directory")
            self._changes.put_nowait(RunEnded(workload.uid, ExitRecord(time.time(), failure=failure)))
            return
        await run.settled.wait()

    async def restore_from_images(
        self,
        workload: WorkloadRef,
        images: Path,
        restore_facts: dict[str, Any],
        origin: SnapshotOrigin = UNKNOWN_ORIGIN,
    ) -> None:
        """Restore the processes in `images` as this workload.

        Raises:
            FilesChangedError: files have changed since the snapshot, and the job's policy for these decides.
            RestoreInterruptedError: the restore failed for reasons outside the snapshot; the caller retries.
            RestoreError: the restore failed; none of the processes runs.
        """
        try:
            async with self._start_lock(workload.uid):
                run = self._runs.get(workload.uid) or await self._begin_restore(workload, images, restore_facts, origin)
        except RestoreInterruptedError:
            raise
        except SnapshotError as error:
            raise RestoreError(error.message, remedy=error.remedy, evidence=error.evidence) from error
        except OSError as error:
            raise RestoreInterruptedError(
                f"the run cannot be prepared: {error}", remedy="free disk space, or see the path"
            ) from error
        await run.settled.wait()
        if not run.has_started and run.record is not None and run.record.failure is not None:
            failure = run.record.failure
            if failure.retryable:
                await self._discard_restore(workload.uid)
                raise RestoreInterruptedError(failure.message, remedy=failure.remedy, evidence=failure.evidence)
            raise failure.restore_error()

    async def fail_waiting_workload(self, workload: WorkloadRef, why: str) -> None:
        """Fail a workload that was waiting for its start; the failure is published in `changes` as the run's end."""
        await self._discard_restore(workload.uid)
        if workload.uid not in self._runs:
            self._create_failed_run(workload.uid, await self._job_of(workload), Failure(why))

    async def terminate(self, uid: str, grace_seconds: float) -> None:
        """Send SIGTERM to the group of the job's command, then kill the run. Returns at the run's end."""
        run = await self._wait_start_in_flight(uid)
        if run is None:
            return
        await run.settled.wait()
        if run.state is not None and run.state.init is not None:
            if run.spec.terminal_output is not None:
                terminate_session(run.state.init.pid)
            else:
                run.state.init.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await run.ended.wait()
        except TimeoutError:
            await self.kill(uid)

    async def kill(self, uid: str) -> None:
        """Kill the run, frozen or not. Returns when nothing of the run is left. Does nothing if the run has ended.

        Processes that wait for a device die only when the device responds, so a kill may take long; the log reports it.
        """
        run = await self._wait_start_in_flight(uid)
        if run is None:
            return
        while not run.ended.is_set():
            settled = run.settled.is_set()
            try:
                await asyncio.to_thread(run.group.kill)
            except CedanaSchedError as error:
                log.warning("run does not end", run=uid, error=str(error))
            if settled:
                await run.ended.wait()
            else:  # the run was being started, and may have started after the kill
                await run.settled.wait()

    def usage(self, uid: str) -> Usage | None:
        """Return CPU seconds and memory bytes of a run; None if the run has ended."""
        group = self.cgroup_of(uid)
        return group.resource_usage() if group else None

    def cgroup_of(self, uid: str) -> Cgroup | None:
        """Return the control groups of a run; None if the run has ended."""
        run = self._runs.get(uid)
        return None if run is None or run.ended.is_set() else run.group

    async def discard_run(self, uid: str) -> None:
        """Remove the directory of a run whose end is persisted. The run's output is kept."""
        run = self._runs.pop(uid, None)
        self._held_files.forget_run(uid)
        self._preparing.pop(uid, None)
        if run is not None:
            await run.ended.wait()
            await asyncio.to_thread(shutil.rmtree, run.directory.path)

    async def close(self) -> None:
        """Stop watching runs. The jobs and their supervisors keep running."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._supervisors.close()
        await asyncio.to_thread(self._site.remove_unused_groups)

    async def _begin_cold(self, workload: WorkloadRef, why: str | None) -> SupervisedRun:
        job = await self._job_of(workload)
        directory = self._directory_of(workload.uid)
        mounts = host_externals()
        try:
            task = create_launch_task(job, self._tini, directory.root, mounts)
        except UsageError as error:
            return self._create_failed_run(workload.uid, job, Failure(error.message, error.remedy))
        try:
            create_output_directories(job)
        except OSError as error:
            failure = Failure(f"its output has no place: {error}", "free space there, or name another place")
            return self._create_failed_run(workload.uid, job, failure)
        return await self._begin(replace(self._spec(workload.uid, task, job, mounts), cold_because=why))

    async def _begin_restore(
        self, workload: WorkloadRef, images: Path, facts: dict[str, Any], origin: SnapshotOrigin
    ) -> SupervisedRun:
        mounts = require_mounts(facts.get("mounts", []))
        directory = self._directory_of(workload.uid)
        job = await self._job_of(workload)
        request = RestoreRequest(
            images=images,
            workdir=directory.path,
            mount_point=directory.root,
            externals=mounts.criu_external_values(),
            stall_seconds=self._stall_seconds,
            has_terminal=facts.get(_TERMINAL, False) is True,
            on_change=on_change_of(job.on_volume_change, origin),
            outputs=(job.stdout, job.stderr),
        )
        request = await self._prepare_in_time(workload.uid, request)
        spec = self._spec(workload.uid, RestoreTask(self._toolchain, request), job, mounts)
        create_output_directories(job)
        return await self._begin(replace(spec, terminal_output=job.stdout if request.has_terminal else None))

    async def _prepare_in_time(self, uid: str, request: RestoreRequest) -> RestoreRequest:
        threads = self._preparing.setdefault(uid, StoreThreads(1, name="prepare"))
        try:
            async with asyncio.timeout(_PREPARATION_SECONDS):
                return await threads.run(prepare_images, self._toolchain, request)
        except TimeoutError as error:
            raise RestoreInterruptedError(
                f"the names of the job's files were not examined within {_PREPARATION_SECONDS:g} s",
                remedy="repair the file system that does not answer",
            ) from error

    async def _wait_start_in_flight(self, uid: str) -> SupervisedRun | None:
        """Return the run, waiting for a start in flight, which would otherwise escape a termination."""
        async with self._start_lock(uid):
            return self._runs.get(uid)

    def _start_lock(self, uid: str) -> asyncio.Lock:
        """Return the lock of a run's start; that of one run may wait for a file system."""
        return self._starts.setdefault(uid, asyncio.Lock())

    async def _begin(self, spec: RunSpec) -> SupervisedRun:
        directory = self._directory_of(spec.run)
        async with self._beginning:
            directory.create(spec)
            try:
                pidfd = await self._supervisors.start(directory.path)
            except SupervisorError as error:
                directory.write_exit(ExitRecord(time.time(), failure=Failure(error.message, error.remedy)))
                pidfd = None
        return self._start_watching(SupervisedRun(directory, spec), pidfd)

    def _create_failed_run(self, uid: str, job: LaunchSpec, failure: Failure) -> SupervisedRun:
        """Create a run that has failed before its start."""
        directory = self._directory_of(uid)
        spec = self._spec(uid, None, job, Externals(()))
        directory.create(spec)
        directory.write_exit(ExitRecord(time.time(), failure=failure))
        return self._start_watching(SupervisedRun(directory, spec), None)

    def _spec(self, uid: str, task: Job | RestoreTask | None, job: LaunchSpec, mounts: Externals) -> RunSpec:
        return RunSpec(
            run=uid,
            task=task,
            limits=job.limits,
            cgroup=self._site.run_group(uid).as_json(),
            mounts=mounts.mounts,
            terminal_output=job.stdout if job.has_terminal else None,
            engines_folder=job.engines_folder,
        )

    def _directory_of(self, uid: str) -> RunDirectory:
        return RunDirectory(self._directory / uid)

    async def _discard_restore(self, uid: str) -> None:
        """Discard a restore that failed or is no longer wanted, so that the workload can be started."""
        run = self._runs.get(uid)
        if run is None or not run.spec.is_restore or run.has_started:
            return
        run.unwanted = True
        await self.kill(uid)
        await self.discard_run(uid)

    def _start_watching(self, run: SupervisedRun, pidfd: int | None) -> SupervisedRun:
        self._runs[run.uid] = run
        task = asyncio.create_task(self._watch_to_end(run, pidfd), name=f"run {run.uid}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def _watch_to_end(self, run: SupervisedRun, pidfd: int | None) -> None:
        """Watch the run to its end, and publish its start and its end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish_start(run), name=f"announce {run.uid}")
                await run.watch(pidfd)
        except ExceptionGroup:
            log.exception("run is not watched any more", run=run.uid)
            raise
        if run.record is not None and not run.unwanted and (run.has_started or not run.spec.is_restore):
            self._changes.put_nowait(RunEnded(run.uid, run.record))

    async def _publish_start(self, run: SupervisedRun) -> None:
        await run.settled.wait()
        if run.has_started and run.state is not None and run.state.started_at is not None:
            self._changes.put_nowait(
                RunBegan(
                    run=run.uid,
                    at=run.state.started_at,
                    restored=run.spec.is_restore,
                    cold_because=run.spec.cold_because,
                    notes=run.state.notes,
                )
            )
