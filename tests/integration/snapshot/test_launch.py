"""A job's namespaces, and what is said when it cannot be started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.external_mounts import Externals
from cedana_sched.snapshot.launch import Job, start
from tests.integration.snapshot import single_threaded

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu


def namespace(pid: int | str, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def test_a_job_has_its_own_pid_mount_and_ipc_namespaces_and_few_mounts(lab: Laboratory) -> None:
    lab.start("/bin/sh", "-c", "echo ready; exec sleep 60")
    lab.await_lines(1)
    for kind in ("pid", "mnt", "ipc"):
        assert namespace(lab.pid, kind) != namespace("self", kind)
    for kind in ("net", "uts", "user"):
        assert namespace(lab.pid, kind) == namespace("self", kind)
    assert Path(f"/proc/{lab.pid}/comm").read_text() == "tini\n"
    assert Path(f"/proc/{lab.pid}/root").stat().st_dev == Path("/").stat().st_dev
    mounts = [line.split()[4] for line in Path(f"/proc/{lab.pid}/mountinfo").read_text().splitlines()]
    assert set(mounts) >= {"/", "/proc", "/dev", "/dev/pts", "/dev/shm", "/sys"}
    assert len(mounts) == len(set(mounts)), "every mount is there once"
    assert not any(mount.startswith("/sys/") for mount in mounts)
    assert freezer.pids_in_cgroup(lab.cgroup)[0] == lab.pid


def test_it_is_a_child_and_its_exit_status_its_commands(lab: Laboratory) -> None:
    lab.start("/bin/sh", "-c", "exit 7")
    assert Path(f"/proc/{lab.pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid())
    assert lab.wait() == 7


def test_output_is_appended(lab: Laboratory) -> None:
    lab.output.write_text("before\n")
    lab.start("/bin/echo", "after")
    assert lab.wait() == 0
    assert lab.lines() == ["before", "after"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"tini": "/nowhere/tini"}, "/nowhere/tini", id="tini"),
        pytest.param({"directory": "/nowhere"}, "/nowhere", id="directory"),
        pytest.param({"stdout": "/nowhere/out"}, "/nowhere/out", id="output"),
        pytest.param({"mount_point": "/nowhere"}, "/nowhere", id="mount point"),
        pytest.param({"cgroups": ("/sys/fs/cgroup/nowhere",)}, "/sys/fs/cgroup/nowhere", id="cgroup"),
        pytest.param({"externals": Externals(("/dev", "/nowhere"))}, "/nowhere", id="mount of the host"),
    ],
)
def test_what_is_missing_is_named(lab: Laboratory, change: dict[str, object], named: str) -> None:
    job = Job(
        command=("/bin/true",),
        tini=str(lab.toolchain.tini),
        mount_point=str(lab.mount_point),
        externals=lab.externals,
        cgroups=(str(lab.cgroup),),
    )
    with pytest.raises(SnapshotError, match=named):
        single_threaded.call(start, msgspec.structs.replace(job, **change))
    assert lab.children_left() == set()
