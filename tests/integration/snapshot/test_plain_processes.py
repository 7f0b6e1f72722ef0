"""Trees without namespaces of their own: they come back under the very same process numbers, or not at all."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.snapshot import freezer

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


@pytest.fixture
def plain(lab: Laboratory) -> Laboratory:
    """A laboratory whose job is an ordinary child of the test, in the test's own namespaces."""
    lab.mount_point = None  # type: ignore[assignment]
    lab.externals = type(lab.externals)(())
    with lab.output.open("ab") as output:
        child = subprocess.Popen(
            ["/usr/bin/python3", "-u", "-c", COUNTING],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/",
        )  # fmt: skip
    (lab.cgroup / "cgroup.procs").write_text(str(child.pid))
    lab.pid = child.pid
    child.returncode = 0  # the laboratory reaps it
    return lab


def test_it_is_continued_under_its_number(plain: Laboratory) -> None:
    first = plain.pid
    for _ in range(2):
        plain.await_progress()
        plain.next_generation()
    plain.await_progress()
    assert plain.pid == first
    plain.kill()
    assert plain.lines() == [str(number) for number in range(1, len(plain.lines()) + 1)]


def test_a_number_in_use_is_explained(plain: Laboratory) -> None:
    plain.await_progress()
    freezer.freeze(plain.cgroup)
    plain.dump()
    freezer.thaw(plain.cgroup)
    running, cgroup = plain.pid, plain.cgroup
    with pytest.raises(RestoreError, match="process number that the snapshot needs is taken") as caught:
        plain.restore()
    assert "PID namespace" in caught.value.remedy
    assert freezer.pids_in_cgroup(plain.cgroup) == []
    assert freezer.pids_in_cgroup(cgroup) == [running]
    freezer.kill(cgroup)
    os.waitpid(running, 0)
    plain.restore()
    plain.await_progress()
