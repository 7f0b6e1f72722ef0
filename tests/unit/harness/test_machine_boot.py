"""The first process of a machine, as far as it can be asked without becoming one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.machine import boot

Mounts = list[tuple[str, str, str]]


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """What would have been mounted: type, folder, options."""
    mounts: Mounts = []

    def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
        mounts.append((kind or source, Path(target).name, options))

    monkeypatch.setattr(boot, "mount", mount)
    return mounts


def test_every_hierarchy_of_version_1_is_mounted_under_its_own_name(tmp_path: Path, mounts: Mounts) -> None:
    memberships = tmp_path / "memberships"
    memberships.write_text("9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/\n0::/\n")
    target = tmp_path / "cgroup"
    target.mkdir()

    boot.control_groups(target, memberships)

    assert mounts == [
        ("tmpfs", "cgroup", "mode=755"),
        ("cgroup", "systemd", "none,name=systemd"),
        ("cgroup", "memory", "memory"),
        ("cgroup", "cpu,cpuacct", "cpu,cpuacct"),
        ("cgroup2", "unified", ""),
    ]
    assert {path.name: str(path.readlink()) for path in target.iterdir() if path.is_symlink()} == {
        "cpu": "cpu,cpuacct",
        "cpuacct": "cpu,cpuacct",
    }


def test_version_2_is_one_mount_and_hands_its_controllers_to_the_kubelet(tmp_path: Path, mounts: Mounts) -> None:
    memberships = tmp_path / "memberships"
    memberships.write_text("0::/init\n")
    (tmp_path / "cgroup.controllers").write_text("cpu\n")

    boot.control_groups(tmp_path, memberships)

    assert mounts == [("cgroup2", tmp_path.name, "")]
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_controller_that_is_refused_is_told_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # cannot be written

    boot.hand_down(tmp_path)

    said = capsys.readouterr().err
    assert "the controller cpu is refused to the machine's groups" in said
    assert "the controller memory is refused" in said


def test_folder_and_file_of_the_host_find_a_place_to_lie_on(tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").touch()

    boot.bind(tmp_path / "host", str(tmp_path / "root/etc/folder"), read_only=False)
    boot.bind(tmp_path / "host/file", str(tmp_path / "root/etc/file"), read_only=True)

    assert (tmp_path / "root/etc/folder").is_dir()
    assert (tmp_path / "root/etc/file").is_file()
    assert [source for source, _, _ in mounts] == [str(tmp_path / "host"), str(tmp_path / "host/file"), "none"]


def test_nothing_of_the_caller_reaches_a_machine() -> None:
    program = """
import os, signal
from tests.cluster.machine import boot
os.umask(0o077); signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
boot.forget_caller()
print(oct(os.umask(0)), signal.getsignal(signal.SIGINT) is signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert said == "0o22 True set()\n"
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL  # this process keeps its own
