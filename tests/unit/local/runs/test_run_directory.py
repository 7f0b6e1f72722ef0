"""A run's files are complete or not there, and say the same to whoever reads them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cedana_sched.local.runs.launch_spec import RestoreTask
from cedana_sched.local.runs.process_identity import ProcessId
from cedana_sched.local.runs.run_directory import ExitRecord, Failure, RunDirectory, RunSpec, RunState
from cedana_sched.model.errors import FilesChangedError, RestoreError
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.snapshot.cgroups import Limits
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.launch import Job
from cedana_sched.snapshot.restore import RestoreRequest

START = Job(command=("sh", "-c", "echo 'ä'"), tini="/tini", mount_point="/root")
TOOLCHAIN = Toolchain(
    version="4.2.1", criu=Path("/criu"), tini=Path("/tini"), nft=Path("/nft"), pycriu=Path("/py"), preload=Path("/p.so")
)
RESTORE = RestoreTask(
    TOOLCHAIN,
    RestoreRequest(
        images=Path("/images"),
        workdir=Path("/work"),
        externals=("mnt[/x]:/x",),
        on_change=OnChange.COLD,
        outputs=(Path("/out"),),
    ),
)
ME = ProcessId(7, 12345, "boot")


def spec(task: Job | RestoreTask | None) -> RunSpec:
    return RunSpec(
        run="r1",
        task=task,
        limits=Limits(0.5, 1 << 20),
        cgroup={"unified": "/sys/fs/cgroup/x"},
        mounts=("/dev", "/data"),
    )


@pytest.mark.parametrize(("task", "restores"), [(START, False), (RESTORE, True), (None, False)])
def test_spec_is_read_as_it_was_written(tmp_path: Path, task: Job | RestoreTask | None, restores: bool) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.create(spec(task))
    found = RunDirectory(tmp_path / "r1").read_spec()
    assert found == spec(task)
    assert found.is_restore is restores


def test_a_spec_is_its_owners_alone_because_of_the_environment(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "r1").create(spec(START))
    assert stat.S_IMODE((tmp_path / "r1" / "spec.json").stat().st_mode) == 0o600


def test_state_and_end_are_read_as_they_were_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    state = RunState("running", ME, ProcessId(8, 12346, "boot"), 1.5, ("no CPU limit",))
    record = ExitRecord(2.5, signal="SIGKILL", lost=True, failure=Failure("gone", "look", ("line",)))
    directory.write_state(state)
    directory.write_exit(record)
    assert (directory.read_state(), directory.read_exit()) == (state, record)


@pytest.mark.parametrize("kind", [RestoreError, FilesChangedError])
def test_a_failed_restore_is_raised_as_it_was_recorded(tmp_path: Path, kind: type[RestoreError]) -> None:
    directory = RunDirectory(tmp_path)
    failure = Failure.from_error(kind("grown", remedy="look", evidence=("line",)))
    directory.write_exit(ExitRecord(2.5, failure=failure))
    record = directory.read_exit()
    assert record is not None
    assert record.failure is not None
    error = record.failure.restore_error()
    assert (type(error), error.message, error.remedy, error.evidence) == (kind, "grown", "look", ("line",))


def test_what_is_not_there_yet_is_none(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "nothing")
    assert (directory.read_spec(), directory.read_state(), directory.read_exit()) == (None, None, None)


def test_file_that_a_power_cut_emptied_counts_as_not_there(tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()
    assert RunDirectory(tmp_path).read_state() is None


def test_replacing_a_file_leaves_no_other(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for phase in ("preparing", "running", "exited"):
        directory.write_state(RunState(phase, ME))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_unbegun_run_is_discarded(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.create(spec(START))
    assert directory.discard_unbegun()
    assert not directory.path.exists()


def test_run_that_a_supervisor_holds_is_not_discarded(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.create(spec(START))
    lock = directory.try_to_lock()
    assert lock is not None
    assert RunDirectory(directory.path).try_to_lock() is None
    assert not directory.discard_unbegun()


def test_run_that_has_begun_is_not_discarded(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.create(spec(START))
    directory.write_state(RunState("preparing", ME))
    assert not directory.discard_unbegun()
    assert directory.read_spec() is not None
