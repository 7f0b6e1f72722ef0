"""A pod of which one container cannot be saved runs on as before; a doomed pod ends when it is deleted."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.agent.capture_messages import CaptureFailed
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.snapshot import freezer
from tests.integration.cluster.node.conftest import Laboratory
from tests.integration.cluster.node.pods import Container, until
from tests.integration.cluster.node.test_pod_generations import COUNTER

pytestmark = pytest.mark.criu

STUBBORN = """
import os, time
kept = open("/opt/one name", "w")
os.link("/opt/one name", "/opt/another name")
os.unlink("/opt/one name")  # a snapshot cannot find the other
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.02)
"""

BUSY = """
import socket, time
listener = socket.create_server(("", 7070))
print("listens")
time.sleep(60)
"""

WAITING = """
import socket, time
listener = socket.create_server(("127.0.0.1", 7070))
client = socket.create_connection(("127.0.0.1", 7070))
print("connected")
time.sleep(60)
"""

LISTENER = """
import os, socket, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
server.bind(("127.0.0.1", 7070))
server.listen()
connection, _ = server.accept()
print("connected")
while not os.path.exists("/data/may read"):
    time.sleep(0.02)
received = 0
while part := connection.recv(10000):
    received += len(part)
print(received)
time.sleep(60)
"""

SPEAKER = """
import socket, time
while True:
    try:
        connection = socket.create_connection(("127.0.0.1", 7070))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
connection.sendall(bytes(100_000))
connection.close()
print("said all")
time.sleep(60)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in another mount namespace, which has all mounts that are made here later too."""
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    subprocess.run(["mount", "--make-shared", tmp_path], check=True)
    host = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", "echo; exec sleep infinity"],
        stdout=subprocess.PIPE,
    )
    assert host.stdout is not None
    assert host.stdout.readline() == b"\n"
    yield host
    host.kill()
    host.wait()
    host.stdout.close()
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_what_one_container_cannot_all_cannot(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    good, bad = pod.run("good", COUNTER), pod.run("stubborn", STUBBORN)
    good.await_lines(1)
    bad.await_lines(1)
    running = lab.freeze(pod)
    report = asyncio.run(lab.capture(running))
    assert isinstance(report, CaptureFailed), report
    assert lab.store.list(lab.identity.namespace, lab.identity.id) == []
    good.await_progress()
    bad.await_progress()


def test_a_pod_that_runs_is_not_saved(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    first, second = pod.run("first", COUNTER), pod.run("second", COUNTER)
    running = lab.freeze(pod)
    freezer.thaw(running.containers[1].freezer)
    report = asyncio.run(lab.capture(running))
    assert isinstance(report, CaptureFailed), report
    assert report.retryable
    freezer.thaw_together(running.freezer_cgroups)
    first.await_progress()
    second.await_progress()


def test_a_connection_that_is_not_accepted_yet_is_a_matter_of_time(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    pod.run("main", WAITING).await_lines(1)
    report = asyncio.run(lab.capture(lab.freeze(pod)))
    assert isinstance(report, CaptureFailed), report
    assert "had not accepted" in report.why
    assert report.retryable


def test_what_was_said_before_a_connection_was_closed_is_not_lost(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    listener = pod.run("listener", LISTENER)
    pod.run("speaker", SPEAKER).await_lines(1)
    listener.await_lines(1)
    report = asyncio.run(lab.capture(lab.freeze(pod)))
    assert isinstance(report, CaptureFailed), report
    assert "whose other end is closed" in report.why
    assert report.retryable
    (pod.volume / "may read").touch()
    listener.await_lines(2)
    assert listener.lines[1] == "100000"
    lab.dump(lab.freeze(pod))


def test_a_connection_from_elsewhere_that_is_never_accepted_is_left_out(lab: Laboratory) -> None:
    """As of a probe, of which there is always one under way."""
    pod = lab.node.pod("pod-1")
    pod.run("main", BUSY).await_lines(1)
    enter = ("nsenter", f"--net={pod.namespace('net')}", "--")
    ours = ("ip", "link", "add", "in-flight", "type", "veth", "peer", "name", "eth0", "netns", pod.namespace("net"))
    subprocess.run(ours, check=True)
    try:
        subprocess.run(("ip", "address", "add", "198.18.7.1/30", "dev", "in-flight"), check=True)
        subprocess.run(("ip", "link", "set", "in-flight", "up"), check=True)
        subprocess.run((*enter, "ip", "address", "add", "198.18.7.2/30", "dev", "eth0"), check=True)
        subprocess.run((*enter, "ip", "link", "set", "eth0", "up"), check=True)
        with socket.create_connection(("198.18.7.2", 7070), timeout=20):
            lab.dump(lab.freeze(pod))
    finally:
        subprocess.run(("ip", "link", "delete", "in-flight"), check=True)


async def test_a_doomed_pod_stays_frozen_until_it_is_deleted(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    containers = pod.run("first", COUNTER), pod.run("second", COUNTER)
    for container in containers:
        await asyncio.to_thread(container.await_lines, 1)
    running = await lab.runtime.find_running(lab.ref(pod))
    assert running is not None
    await asyncio.to_thread(freezer.freeze_together, running.freezer_cgroups)
    async with lab.pending_kills:
        await lab.runtime.kill_frozen("c1", lab.ref(pod))
        assert await lab.runtime.find_running(lab.ref(pod)) is None
        assert all(map(freezer.is_frozen, running.freezer_cgroups))
        assert all(map(freezer.pids_in_cgroup, running.freezer_cgroups))
        for container in containers:
            await asyncio.to_thread(_last_line, container, "frozen")
        await lab.pending_kills.on_deleted(pod.uid)
        assert not any(map(freezer.pids_in_cgroup, running.freezer_cgroups))
    pod.end()
    assert [container.lines[-1] for container in containers] == ["frozen", "frozen"]


def _last_line(container: Container, line: str) -> None:
    """Have a line follow all that a frozen container has printed; returns once it has come."""
    first, *_ = freezer.pids_in_cgroup(container.freezer)
    Path(f"/proc/{first}/fd/1").write_text(f"{line}\n")
    until(lambda: container.lines[-1] == line, lambda: f"{line!r} of {container.name}: {container.lines[-5:]}")


def test_an_agent_in_a_mount_namespace_of_its_own(elsewhere: subprocess.Popen[bytes], lab: Laboratory) -> None:
    """It sees the host below /proc/PID/root, and starts CRIU in the host's namespace."""
    pod = lab.node.pod("pod-1")
    counter = pod.run("main", COUNTER)
    counter.await_lines(1)
    host = Path(f"/proc/{elsewhere.pid}/root")
    places = lab.node.places
    seen = HostPaths(host_root=host, bundles=places.bundles, states=places.states, pods=places.pods)
    lab.see(seen)
    lab.launcher = ("nsenter", f"--mount=/proc/{elsewhere.pid}/ns/mnt", "--")
    running = lab.freeze(pod)
    assert running.containers[0].freezer.is_relative_to(host)
    images = lab.stage(lab.dump(running))
    assert (images / "main/rootfs.tar").exists()
    assert (images / "main/inventory.img").exists()
    for cgroup in running.freezer_cgroups:
        freezer.kill(cgroup)
    until(lambda: not freezer.pids_in_cgroup(running.freezer_cgroups[0]), lambda: "its end")
