"""Containers of a pod go into a store together, and continue in another pod with the files that died with the first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.loopback_blocking import block_loopback_tcp, unblock_loopback_tcp
from tests.integration.cluster.node.conftest import Laboratory
from tests.integration.cluster.node.pods import Pod

pytestmark = pytest.mark.criu

COUNTER = """
import time
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.02)
"""

SERVER = """
import os, socket, time
os.makedirs("/opt/made here/deep")
open("/opt/made here/deep/file", "w").write("kept")
os.symlink("/etc/hostname", "/opt/made here/link")
os.mknod("/opt/pipe", 0o10644)
os.remove("/etc/shells")
os.rename("/etc/profile", "/etc/profile.moved")
with open("/opt/sparse", "wb") as file:
    file.truncate(64 << 20)
    file.seek(32 << 20)
    file.write(b"here")
os.setxattr("/opt/sparse", "user.test", b"x")
listener = socket.create_server(("127.0.0.1", 7070))
log = open("/data/log", "a", buffering=1)
number = 0
while True:
    connection, _ = listener.accept()
    with connection:
        number += int(connection.recv(100))
        log.write(f"{number}\\n")
        connection.sendall(f"{number} {open('/opt/made here/deep/file').read()}".encode())
"""

CLIENT = """
import os, socket, time
shared = open("/dev/shm/shared", "w+")
first = open("/data/of the client", "w")
number = 0
while True:
    try:
        with socket.create_connection(("127.0.0.1", 7070)) as server:
            server.sendall(b"1")
            print(server.recv(100).decode())
            number += 1
            shared.seek(0)
            shared.write(str(number))
            shared.flush()
    except ConnectionRefusedError:
        pass
    time.sleep(0.01)
"""


def lay(archive: Path, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "cedana_sched.runtime_handler.layer", archive, folder], check=True)


def bring_back(lab: Laboratory, images: Path, uid: str) -> Pod:
    """As the agent and the runtime handler do."""
    pod = lab.node.pod(uid)
    lay(images / "volumes/data.tar", pod.volume)
    lay(images / "volumes/_shm.tar", pod.shared_memory)
    block_loopback_tcp(lab.toolchain, Path(pod.namespace("net")))
    for folder in sorted(path for path in images.iterdir() if (path / "inventory.img").exists()):
        container = pod.container(folder.name)
        container.make(["/bin/false"])
        lay(folder / "rootfs.tar", container.bundle / "rootfs")
        container.restore(folder)
    unblock_loopback_tcp(lab.toolchain, Path(pod.namespace("net")))
    return pod


def take_away(lab: Laboratory, pod: Pod) -> Path:
    """Freeze, dump, kill; returns the staged snapshot."""
    running, committed = lab.save(pod)  # a connection may not be accepted yet
    images = lab.stage(committed)
    for cgroup in running.freezer_cgroups:
        freezer.kill(cgroup)
    pod.end()
    return images


@pytest.mark.parametrize(("user", "readonly"), [(0, False), (1000, False), (1000, True)])
def test_a_container_continues_in_another_pod(lab: Laboratory, user: int, readonly: bool) -> None:
    first = lab.node.pod("pod-1")
    counter = first.run("main", COUNTER, user=user, readonly=readonly)
    counter.await_lines(3)
    images = take_away(lab, first)

    second = lab.node.pod("pod-2")
    again = second.container("main")
    again.make(["/bin/false"], user=user, readonly=readonly)
    again.restore(images / "main")

    again.await_lines(3)
    assert int(again.lines[0]) == int(counter.lines[-1]) + 1


def test_two_containers_continue_together_with_their_files(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    pod.run("server", SERVER)
    client = pod.run("client", CLIENT)
    client.await_lines(5)
    answers: list[str] = []
    for generation in (2, 3):
        images = take_away(lab, pod)
        answers += client.lines
        pod = bring_back(lab, images, f"pod-{generation}")
        server, client = pod.containers["server"], pod.containers["client"]
        client.await_lines(5)
        root = server.bundle / "rootfs"
        assert (root / "opt/made here/link").readlink() == Path("/etc/hostname")
        assert not (root / "etc/shells").exists()
        assert not (root / "etc/profile").exists()
        assert (root / "etc/profile.moved").read_text() == Path("/etc/profile").read_text()
        assert (root / "opt/sparse").stat().st_size == 64 << 20
        assert os.getxattr(root / "opt/sparse", "user.test") == b"x"
        assert (pod.volume / "of the client").exists()
    answers += list(client.lines)
    numbers = [int(answer.split()[0]) for answer in answers]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {answer.split()[1] for answer in answers} == {"kept"}
    logged = [int(line) for line in (pod.volume / "log").read_text().splitlines()]
    assert logged[: len(numbers)] == numbers
