"""A restore that fails says why, and leaves no process, no cgroup member and no zombie."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs.child_subreaper import become_child_subreaper
from cedana_sched.model.errors import RestoreError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.grown_file_truncation import remove_sizes
from cedana_sched.snapshot.restore import RestoreInterruptedError

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

COUNTING = """
import time
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.002)
"""

WRITING = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    for number in range(10**9):
        file.write(f"{number}\\n")
        print(number)
        time.sleep(0.002)
"""

LISTENING = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1])
while True:
    print("listening")
    time.sleep(0.002)
"""


@pytest.fixture(autouse=True)
def subreaper() -> None:
    """As the supervisor of a job is one: what CRIU leaves behind becomes this process's."""
    become_child_subreaper()


def stop_in_snapshot(lab: Laboratory) -> None:
    freezer.freeze(lab.cgroup)
    lab.dump()
    lab.kill()


def assert_nothing_left(lab: Laboratory) -> None:
    assert freezer.pids_in_cgroup(lab.cgroup) == []
    assert lab.children_left() == set()  # not even a zombie


def test_a_program_that_has_changed_is_named(lab: Laboratory) -> None:
    program = lab.folder / "python"
    shutil.copy(Path("/usr/bin/python3").resolve(), program)
    script = lab.folder / "program.py"
    script.write_text(COUNTING)
    lab.start(str(program), "-u", str(script))
    lab.await_lines(5)
    stop_in_snapshot(lab)
    program.unlink()
    shutil.copy("/bin/sleep", program)
    with pytest.raises(RestoreError, match=str(program)) as caught:
        lab.restore()
    assert "install the version that was running" in caught.value.remedy
    assert_nothing_left(lab)


def test_a_file_that_is_gone_is_named(lab: Laboratory) -> None:
    written = lab.folder / "written"
    lab.python(WRITING, str(written))
    lab.await_lines(5)
    stop_in_snapshot(lab)
    written.unlink()
    with pytest.raises(RestoreError, match=str(written)):
        lab.restore()
    assert_nothing_left(lab)


def test_a_file_that_has_grown_is_refused_and_rewound(lab: Laboratory) -> None:
    """A checkpoint that leaves the job running, then a restore: the file and the log went on in between."""
    written = lab.folder / "written"
    lab.python(WRITING, str(written))
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    lab.dump()
    freezer.thaw(lab.cgroup)
    lab.await_progress()
    lab.kill()
    with pytest.raises(RestoreError, match=r"has .* bytes now, and had") as caught:
        lab.restore()
    assert str(written) in caught.value.message
    assert_nothing_left(lab)
    for _ in range(2):  # an attempt that fails may be repeated with these images
        sizes = remove_sizes(lab.toolchain, lab.images, outputs=[lab.output])
        assert set(sizes) == {str(written), str(lab.output)}
    lab.restore(sizes=sizes)
    assert {file.path for file in lab.truncated} == set(sizes)
    lab.await_progress()
    lab.kill()
    for path in (written, lab.output):
        lines = path.read_text().splitlines()[:-1]  # the kill may have cut the last
        assert lines == [str(number) for number in range(len(lines))]


def test_a_file_that_is_open_to_append_is_left_as_it_is(lab: Laboratory) -> None:
    """Others may have appended to it as well."""
    written = lab.folder / "written"
    lab.python(WRITING.replace('"w"', '"a+"'), str(written))
    lab.await_lines(5)
    stop_in_snapshot(lab)
    with written.open("a") as file:
        file.write("of another\n")
    sizes = remove_sizes(lab.toolchain, lab.images, outputs=[lab.output])
    assert set(sizes) == {str(lab.output)}
    lab.restore(sizes=sizes)
    lab.await_progress()
    lab.kill()
    assert "of another" in written.read_text().splitlines()


def test_a_file_that_has_shrunk_cannot_be_rewound(lab: Laboratory) -> None:
    written = lab.folder / "written"
    lab.python(WRITING, str(written))
    lab.await_lines(5)
    stop_in_snapshot(lab)
    os.truncate(written, 1)
    length = lab.output.stat().st_size
    with pytest.raises(RestoreError, match=f"{written} has 1 bytes now") as caught:
        lab.restore(sizes=remove_sizes(lab.toolchain, lab.images, outputs=[lab.output]))
    assert "put the file back as it was" in caught.value.remedy
    assert_nothing_left(lab)
    assert lab.output.stat().st_size == length


def test_an_address_that_is_taken_is_explained(lab: Laboratory) -> None:
    lab.python(LISTENING)
    lab.await_lines(5)
    stop_in_snapshot(lab)
    with socket.create_server(("127.0.0.1", int(lab.lines()[0]))):
        with pytest.raises(RestoreError, match="taken on this machine"):
            lab.restore()
        assert_nothing_left(lab)
    lab.restore()
    lab.await_progress()


def test_images_that_are_not_complete_are_refused(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    stop_in_snapshot(lab)
    (lab.images / "core-2.img").unlink()
    with pytest.raises(RestoreError, match="not complete"):
        lab.restore()
    assert_nothing_left(lab)


def test_a_restore_that_takes_too_long_is_ended(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    stop_in_snapshot(lab)
    with pytest.raises(RestoreError, match="did not end within"):
        lab.restore(timeout_seconds=0.01)
    assert_nothing_left(lab)
    lab.restore()
    lab.await_progress()


def test_a_restore_that_hangs_is_ended_and_said_so(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    stop_in_snapshot(lab)
    toolchain = lab.toolchain
    criu = lab.folder / "criu"
    criu.write_text("#!/bin/sh\nkill -STOP $$\n")
    criu.chmod(0o755)
    lab.toolchain = replace(toolchain, criu=criu)
    with pytest.raises(RestoreInterruptedError, match="CRIU made no progress for 5 s") as caught:
        lab.restore(stall_seconds=5.0)  # a busy machine is slow to start it, and then it is not stopped yet
    assert any("in state T" in line for line in caught.value.evidence)
    assert_nothing_left(lab)
    lab.toolchain = toolchain
    lab.restore()
    lab.await_progress()
