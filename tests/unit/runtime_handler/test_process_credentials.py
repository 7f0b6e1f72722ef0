"""What processes have, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.privilege_comparison import Capabilities, Confinement, Credentials
from cedana_sched.runtime_handler.process_credentials import MOST_IDS, credentials_of

STATUS = """Name:\t{name}
State:\tS (sleeping)
Uid:\t1000\t1000\t1000\t1000
Gid:\t1001\t1001\t1001\t1001
Groups:\t2000 2001
CapInh:\t0000000000000000
CapPrm:\t{permitted}
CapEff:\t0000000000000000
CapBnd:\t0000000000000021
CapAmb:\t0000000000000000
NoNewPrivs:\t{nnp}
Seccomp:\t{seccomp}
Seccomp_filters:\t1
"""
NONE = "0000000000000000"


def thread(proc: Path, pid: int, task: int, label: str = "profile (enforce)\n", **changes: object) -> Path:
    folder = proc / str(pid) / "task" / str(task)
    (folder / "attr").mkdir(parents=True)
    values = {"name": "app", "permitted": NONE, "nnp": 1, "seccomp": 2} | changes
    (folder / "status").write_text(STATUS.format(**values))
    (folder / "attr/current").write_text(label)
    return folder


def test_a_thread_is_read(tmp_path: Path) -> None:
    thread(tmp_path, 1, 1)
    assert credentials_of([1], Confinement(), tmp_path) == Credentials(
        users=frozenset({1000}),
        groups=frozenset({1001}),
        supplementary_groups=frozenset({2000, 2001}),
        capabilities=Capabilities(bounding=frozenset({"CAP_CHOWN", "CAP_KILL"})),
        no_new_privileges=True,
        filtered=True,
        labels=frozenset({"profile"}),
    )


def test_one_thread_of_one_process_counts_as_all(tmp_path: Path) -> None:
    thread(tmp_path, 1, 1)
    thread(tmp_path, 1, 2, permitted="0000000000200000", label="unconfined\n")
    thread(tmp_path, 3, 3, nnp=0)
    thread(tmp_path, 4, 4, seccomp=0)
    found = credentials_of([1, 3, 4], Confinement(), tmp_path)
    assert found.capabilities.permitted == {"CAP_SYS_ADMIN"}
    assert found.labels == {"profile", ""}
    assert not found.no_new_privileges
    assert not found.filtered


def test_what_has_ended_has_nothing(tmp_path: Path) -> None:
    zombie = thread(tmp_path, 1, 1, nnp=0) / "status"
    zombie.write_text(zombie.read_text().replace("S (sleeping)", "Z (zombie)"))
    (tmp_path / "2/task/2").mkdir(parents=True)
    assert credentials_of([1, 2, 3], Confinement(), tmp_path) == Credentials()


def test_ids_are_those_inside_of_the_container(tmp_path: Path) -> None:
    thread(tmp_path, 1, 1)
    own = Confinement(user_map=((0, 500, 1000),), group_map=((0, 1001, 1),))
    found = credentials_of([1], own, tmp_path)
    assert found.users == {500}
    assert found.groups == {0}
    assert found.supplementary_groups == {2000, 2001}, "nobody inside is called so"


def test_capabilities_that_are_newer_than_this_go_by_their_number(tmp_path: Path) -> None:
    thread(tmp_path, 1, 1, permitted="0000800000000000")
    assert credentials_of([1], Confinement(), tmp_path).capabilities.permitted == {"CAP_47"}


def test_the_kernel_is_understood() -> None:
    found = credentials_of([os.getpid()], Confinement())
    assert os.getuid() in found.users
    assert os.getgid() in found.groups
    assert found.supplementary_groups == set(os.getgroups())


def test_more_groups_than_anybody_means_are_not_gathered(tmp_path: Path) -> None:
    for task in range(1, 9):
        folder = thread(tmp_path, 1, task)
        groups = " ".join(str(task << 16 | number) for number in range(1000))
        status = (folder / "status").read_text().replace("2000 2001", groups)
        (folder / "status").write_text(status)
    with pytest.raises(ValueError, match=f"{MOST_IDS} can be recorded"):
        credentials_of([1], Confinement(), tmp_path)
