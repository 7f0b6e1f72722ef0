"""Which process is the kubelet's containerd, and who restarts it, by what /proc shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cedana_sched.cluster.node.installation.containerd_process import find_containerd
from cedana_sched.cluster.node.installation.host import HostError

SOCKET = Path("/run/containerd/containerd.sock")
TABLE = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000003 00000000 00000000 0001 03 771 /run/containerd/containerd.sock
0000: 00000002 00000000 00010000 0001 01 770 /run/containerd/containerd.sock
0000: 00000002 00000000 00010000 0001 01 990 /run/docker.sock
"""


def _process(proc: Path, pid: int, command: str, inode: int, cgroup: str, parent: int = 1) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/7").symlink_to(f"socket:[{inode}]")
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in command.split()) + b"\0")
    (folder / "environ").write_bytes(b"HOME=/root\0PATH=/opt/bin:/usr/bin\0")
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text(f"{Path(command.split(maxsplit=1)[0]).name}\n")
    (folder / "stat").write_text(f"{pid} ({command}) S {parent} 1 1")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "1/net").mkdir(parents=True)
    (tmp_path / "1/net/unix").write_text(TABLE)
    (tmp_path / "1/fd").mkdir()
    _process(tmp_path, 20, "/usr/bin/dockerd", 990, "0::/system.slice/docker.service\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "restart"),
    [
        ("0::/system.slice/containerd.service\n", ("systemctl", "restart", "containerd.service")),
        ("3:cpu:/\n1:name=systemd:/system.slice/k3s.service\n", ("systemctl", "restart", "k3s.service")),
        ("0::/test\n", ("sv", "restart", "/etc/service/containerd")),
    ],
)
@pytest.mark.parametrize("named", [SOCKET, Path("/var/run/containerd/containerd.sock")])
def test_it_is_found_by_its_socket(proc: Path, cgroup: str, restart: tuple[str, ...], named: Path) -> None:
    _process(proc, 25, "runsv containerd", 1, "0::/\n")
    (proc / "25/cwd").symlink_to("/etc/service/containerd")
    _process(proc, 30, "/usr/bin/containerd --log-level debug", 770, cgroup, parent=25)
    found = find_containerd(named, proc)
    assert (found.pid, found.command[0], found.search_path) == (30, "/usr/bin/containerd", "/opt/bin:/usr/bin")
    assert found.restart_command(proc) == restart


def test_an_unknown_supervisor_is_said(proc: Path) -> None:
    _process(proc, 30, "/usr/bin/containerd", 770, "0::/\n", parent=20)
    with pytest.raises(HostError, match="neither systemd nor runit"):
        find_containerd(SOCKET, proc).restart_command(proc)


@pytest.mark.parametrize("command", [None, "/usr/bin/crio"])
def test_another_runtime_is_refused(proc: Path, command: str | None) -> None:
    if command:
        _process(proc, 30, command, 770, "0::/\n")
    with pytest.raises(HostError, match="no containerd listens") as caught:
        find_containerd(SOCKET, proc)
    assert "CRI-O" in caught.value.remedy


@pytest.mark.parametrize("unread", ["cmdline", "environ"])
def test_a_daemon_that_ends_while_it_is_looked_at_is_none(proc: Path, unread: str) -> None:
    _process(proc, 30, "/usr/bin/containerd", 770, "0::/\n")
    (proc / "30" / unread).unlink()
    with pytest.raises(HostError, match="no containerd listens at"):
        find_containerd(SOCKET, proc)


def test_a_daemon_that_ends_before_its_restart_is_said(proc: Path) -> None:
    _process(proc, 30, "/usr/bin/containerd", 770, "0::/\n", parent=20)
    found = find_containerd(SOCKET, proc)
    (proc / "30" / "cgroup").unlink()
    with pytest.raises(HostError, match=r"process 30.* ended"):
        found.restart_command(proc)


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _process(proc, 30, "/usr/bin/containerd", 770, "0::/\n")
    (proc / "30/fd/3").symlink_to("/dev/null")
    read = os.readlink

    def closed_meanwhile(path: Path) -> str:
        if path.name == "3":
            path.unlink()
        return read(path)

    monkeypatch.setattr(os, "listdir", lambda path: sorted(entry.name for entry in os.scandir(path)))
    monkeypatch.setattr(os, "readlink", closed_meanwhile)
    assert find_containerd(SOCKET, proc).pid == 30
