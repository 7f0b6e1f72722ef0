"""The look before a freeze costs what the workload itself has, and finds its words for whatever that is called."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cedana_sched.model import codec
from cedana_sched.model.orders import CheckpointFailed
from cedana_sched.snapshot.preflight import CutShortError, find_obstacles

ME = os.getpid()


class _Opened:
    """What this process opens, while anybody wants to know: an audit hook stays for good."""

    def __init__(self) -> None:
        self.paths: list[str] | None = None
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in {"open", "os.listdir", "os.scandir"} and self.paths is not None:
            self.paths.append(os.fsdecode(str(arguments[0])))

    @contextmanager
    def listed(self) -> Iterator[list[str]]:
        found: list[str] = []
        self.paths = found
        try:
            yield found
        finally:
            self.paths = None


_OPENED = _Opened()


@pytest.fixture
def leased(tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Give this process a lease on a file of that name, which it has mapped."""
    held: list[tuple[int, mmap.mmap]] = []

    def take(name: bytes) -> None:
        path = os.fsencode(tmp_path) + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.truncate(path, 4096)
        descriptor = os.open(path, os.O_RDONLY)
        view = mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ)
        held.append((descriptor, view))
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)

    yield take
    for descriptor, view in held:
        view.close()
        os.close(descriptor)


def test_the_locks_of_the_node_are_not_read() -> None:
    """They are everybody's: 200,000 of one pod's kept every other pod from being frozen in time."""
    with _OPENED.listed() as opened:
        assert find_obstacles([ME]) == []
    assert f"/proc/{ME}/comm" in opened
    assert {path for path in opened if not path.startswith(f"/proc/{ME}/")} == set()


def test_a_lease_on_a_mapped_file_is_found(leased: Callable[[bytes], None], tmp_path: Path) -> None:
    leased(b"leased")
    (obstacle,) = find_obstacles([ME])
    assert f"has a lease on a file that it has mapped ({tmp_path}/leased)" in str(obstacle)


def test_a_lease_on_a_file_that_is_not_mapped_is_none(tmp_path: Path) -> None:
    path = tmp_path / "leased"
    path.touch()
    with path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        assert find_obstacles([ME]) == []


@pytest.mark.parametrize(
    "name", [b"\xff", b"a\rb", b"a\x0cb", b"\x1c", "a\u2028b".encode(), b" a\x85 b", b"a\nb", b"\xed\xb3\xbf"]
)
def test_leased_files_may_have_any_name(leased: Callable[[bytes], None], name: bytes) -> None:
    leased(name)
    (obstacle,) = find_obstacles([ME])
    assert obstacle.problem.startswith("has a lease on a file that it has mapped (/")
    said = str(obstacle)
    assert said.encode().decode() == said
    assert codec.to_builtins(CheckpointFailed("c1", said))["why"] == said


def test_only_so_many_processes_are_looked_at() -> None:
    """A file is opened twice at most for each thread, and for each descriptor: so what is opened is bounded, too."""
    with _OPENED.listed() as opened, pytest.raises(CutShortError, match="more than 3 processes"):
        find_obstacles(itertools.repeat(ME), processes=3)
    assert opened.count(f"/proc/{ME}/comm") == 3


def test_only_so_long_is_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within one process, which may have a million descriptors and threads."""
    clock = itertools.count()
    monkeypatch.setattr("cedana_sched.snapshot.preflight.time.monotonic", lambda: float(next(clock)))
    pipes = [os.pipe() for _ in range(50)]
    try:
        with _OPENED.listed() as opened, pytest.raises(CutShortError, match="more than 20 s"):
            find_obstacles([ME], seconds=20)
        assert f"/proc/{ME}/fd" in opened
        monkeypatch.undo()
        assert find_obstacles([ME]) == []
    finally:
        for descriptor in itertools.chain.from_iterable(pipes):
            os.close(descriptor)


def test_what_was_found_before_the_end_of_the_look_counts(leased: Callable[[bytes], None]) -> None:
    leased(b"leased")
    (obstacle,) = find_obstacles(itertools.repeat(ME), processes=2)
    assert "has a lease" in obstacle.problem


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("anon_inode:[io_uring]", "uses io_uring"),
        ("anon_inode:[perf_event]", "counts hardware events"),
        ("anon_inode:kvm-vm", "runs a virtual machine"),
        ("anon_inode:[userfaultfd]", "handles another process's faults"),
        ("anon_inode:seccomp notify", "handles another process's faults"),
        ("/dev/nvidia-uvm", "holds a GPU"),
        ("/dev/kfd", "holds a GPU"),
        ("/dev/dri/renderD128", "holds a GPU"),
        ("/dev/fuse", "drives a device"),
        ("/dev/infiniband/uverbs0", "drives a device"),
        ("anon_inode:[eventpoll]", None),
        ("/dev/null", None),
    ],
)
def test_what_cannot_be_saved_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, target: str, problem: str | None
) -> None:
    """Names as the kernel writes them in /proc/PID/fd: few machines have all of these devices."""
    monkeypatch.setattr(Path, "readlink", lambda _: Path(target))
    found = find_obstacles([ME])
    assert [one.problem for one in found] == ([problem] if problem else [])
    assert all(one.pid == ME and one.remedy for one in found)
