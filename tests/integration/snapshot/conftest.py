"""A laboratory for snapshots of real processes: jobs in their own namespaces, dumped, killed and restored."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.dump import Dump, DumpRequest, DumpResult
from cedana_sched.snapshot.external_mounts import host_externals
from cedana_sched.snapshot.grown_file_truncation import TruncatedFile
from cedana_sched.snapshot.image_stream_receiver import ImageSink
from cedana_sched.snapshot.launch import Job, start
from cedana_sched.snapshot.posix_lock_removal import remove_posix_locks
from cedana_sched.snapshot.pty_output_reversal import undo_output_processing
from cedana_sched.snapshot.restore import RestoreRequest, restore
from tests.integration.folder_sink import FolderSink
from tests.integration.snapshot import single_threaded
from tests.leftovers import mounts_below
from tests.processes import children

_V1 = Path("/sys/fs/cgroup/freezer")
_V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
PATIENCE_SECONDS = 60.0


class Laboratory:
    """Starts one job and takes it through its generations; everything it made is gone at the end."""

    def __init__(self, toolchain: Toolchain, folder: Path, hierarchy: Path) -> None:
        self._children_before = children()  # servers that other tests share
        self.toolchain = toolchain
        self.folder = folder
        self.output = folder / "output"
        self.mount_point = folder / "root"
        self.mount_point.mkdir()
        self.externals = host_externals()
        self.pid = 0
        self.generation = 0
        self.truncated: tuple[TruncatedFile, ...] = ()
        self._hierarchy = hierarchy
        self._cgroups: list[Path] = []
        self.cgroup = self.new_cgroup()

    @property
    def images(self) -> Path:
        return self.folder / f"images-{self.generation}"

    def start(self, *command: str, directory: Path | None = None, **environment: str) -> None:
        job = Job(
            command=command,
            tini=str(self.toolchain.tini),
            mount_point=str(self.mount_point),
            externals=self.externals,
            environment={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"} | environment,
            directory=str(directory or self.folder),
            stdout=str(self.output),
            stderr=str(self.output),
            cgroups=(str(self.cgroup),),
        )
        self.pid = single_threaded.call(start, job).pid

    def python(self, program: str, *arguments: str) -> None:
        """Start a Python program given as text."""
        script = self.folder / "program.py"
        script.write_text(program)
        self.start("/usr/bin/python3", str(script), *arguments)

    def dump(self, sink: ImageSink | None = None, **changes: object) -> DumpResult:
        """Dump the job, which must be frozen, into the images of a new generation."""
        return self.prepare_dump(sink, **changes).run()

    def prepare_dump(self, sink: ImageSink | None = None, **changes: object) -> Dump:
        self.generation += 1
        settings: dict[str, object] = {
            "root_pid": self.pid,
            "workdir": self.folder / f"dump-{self.generation}",
            "freeze_cgroup": self.cgroup,
            "externals": self.externals.criu_external_values(),
        }
        request = DumpRequest(**(settings | changes))  # type: ignore[arg-type]
        return Dump(self.toolchain, request, sink or FolderSink(self.images))

    def kill(self) -> None:
        freezer.kill(self.cgroup)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def restore(self, **changes: object) -> float:
        """Restore the newest generation into a cgroup of its own; returns the seconds that it took."""
        self.cgroup = self.new_cgroup()
        undo_output_processing(self.toolchain, self.images)
        locks = remove_posix_locks(self.toolchain, self.images)
        settings: dict[str, object] = {
            "images": self.images,
            "workdir": self.folder / f"restore-{self.generation}",
            "mount_point": self.mount_point,
            "externals": self.externals.criu_external_values(),
            "cgroups": (self.cgroup,),
            "locks": locks,
        }
        request = RestoreRequest(**(settings | changes))  # type: ignore[arg-type]
        result = single_threaded.call(restore, self.toolchain, request)
        self.pid = result.root_pid
        self.truncated = result.truncated
        return result.seconds

    def next_generation(self) -> None:
        """Freeze, dump, kill and restore."""
        freezer.freeze(self.cgroup)
        self.dump()
        self.kill()
        self.restore()

    def wait(self) -> int:
        """The exit status of the job, which must end by itself."""
        descriptor = os.pidfd_open(self.pid)
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        ended = waiter.poll(PATIENCE_SECONDS * 1000)
        os.close(descriptor)
        assert ended, f"the job did not end: {self.lines()[-5:]}"
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def lines(self) -> list[str]:
        """What the job has written, by line; a last line without an end is left out."""
        text = self.output.read_text() if self.output.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def await_lines(self, count: int) -> None:
        """Wait until the job has written at least `count` lines."""
        self.await_true(lambda: len(self.lines()) >= count, f"{count} lines")

    def await_progress(self, lines: int = 5) -> None:
        self.await_lines(len(self.lines()) + lines)

    def await_true(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"no {what} after {PATIENCE_SECONDS:g} s: {self.lines()[-5:]}"
            time.sleep(0.01)  # a file that another process writes: no event that this test could share with it

    def new_cgroup(self) -> Path:
        cgroup = self._hierarchy / f"cedana-sched-test-{os.getpid()}-{len(self._cgroups)}"
        cgroup.mkdir()
        self._cgroups.append(cgroup)
        return cgroup

    def children_left(self) -> set[int]:
        """Children of this process, zombies too, that came since the beginning: none but the job's own."""
        return children() - self._children_before

    def close(self) -> None:
        for cgroup in self._cgroups:
            freezer.kill(cgroup)
        if self.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        for cgroup in self._cgroups:
            cgroup.rmdir()


def hierarchies() -> dict[str, Path]:
    """Where this machine can freeze: the v1 freezer hierarchy, the unified one, or both."""
    found = {"v1": _V1} if (_V1 / "cgroup.procs").exists() else {}
    for root in _V2:
        if (root / "cgroup.controllers").exists():
            found["v2"] = root
    return found


def _new_laboratory(toolchain: Toolchain, folder: Path, hierarchy: Path) -> Iterator[Laboratory]:
    laboratory = Laboratory(toolchain, folder, hierarchy)
    yield laboratory
    laboratory.close()


@pytest.fixture
def lab(toolchain: Toolchain, tmp_path: Path) -> Iterator[Laboratory]:
    """A laboratory on the kind of cgroup that this machine prefers."""
    yield from _new_laboratory(toolchain, tmp_path, next(iter(hierarchies().values())))


@pytest.fixture(params=["v1", "v2"])
def either_lab(request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path: Path) -> Iterator[Laboratory]:
    """A laboratory on each kind of cgroup that this machine has."""
    hierarchy = hierarchies().get(request.param)
    if hierarchy is None:
        pytest.skip(f"this machine has no cgroup {request.param}")
    yield from _new_laboratory(toolchain, tmp_path, hierarchy)


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """Every test leaves no mount below its folder."""
    yield
    assert mounts_below(tmp_path) == []
