"""A pod is a workload of several containers; its way back is somebody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from cedana_sched.agent.workload_runtime import RunningContainer
from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import describe
from cedana_sched.cluster.node.containers.pod_containers import PodContainers
from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.cluster.node.pod_runtime import PodRuntime
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.privilege_record import decode
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, VolumeFile, VolumeFiles
from tests.unit.cluster.node.bundle_tree import Host, state

POD = WorkloadRef("p1", "team-a", "sim-0", "node-1")


class Specs:
    def images(self, uid: str) -> dict[str, str]:
        return {name: f"registry.example/{name}" for name in ("main", "side")}

    def service_account(self, uid: str) -> str | None:
        return "builder"


async def _was_restored(workload: WorkloadRef) -> bool:
    return workload == POD


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.fixture
async def pending_kills(host: Host, tmp_path: Path) -> AsyncIterator[PendingKills]:
    async with PendingKills(tmp_path / "doomed", PodContainers(host.places).kill) as pods:
        yield pods


@pytest.fixture
def runtime(host: Host, pending_kills: PendingKills) -> PodRuntime:
    return PodRuntime(_was_restored, host.places, pending_kills, Specs())


async def test_a_pod_without_containers_does_not_run(runtime: PodRuntime) -> None:
    assert await runtime.find_running(POD) is None


async def test_a_pod_is_its_containers_and_volumes(runtime: PodRuntime, host: Host) -> None:
    host.container("a", name="main")
    host.container("b", name="side")
    data = host.folder(host.places.pods / "p1/volumes/kubernetes.io~empty-dir/data")
    running = await runtime.find_running(POD)
    assert running is not None
    assert [tree.name for tree in running.containers] == ["main", "side"]
    assert running.volumes["data"] == data
    facts = running.restore_facts
    assert (facts["containers"], facts["volumes"]) == (["main", "side"], ["_shm", "data"])
    assert facts["images"] == {"main": "registry.example/main", "side": "registry.example/side"}
    assert facts["service_account"] == "builder"
    assert decode(facts["privileges"]["side"]).container.joined_namespaces == {"network", "ipc"}
    assert running.is_restored


async def test_what_may_change_a_moment_later_is_told_of_frozen_pods_alone(runtime: PodRuntime, host: Host) -> None:
    host.container("a", state=state(cgroup_paths={"": "/sys/fs/cgroup/a"}))
    events = host.folder(Path("/sys/fs/cgroup/a")) / "cgroup.events"
    for frozen in (0, 1):
        events.write_text(f"populated 1\nfrozen {frozen}\n")
        running = await runtime.find_running(POD)
        assert running is not None
        assert ("privileges" in running.restore_facts) == bool(frozen)


async def test_all_containers_of_a_pod_share_what_may_be_written_down_of_volumes(
    runtime: PodRuntime, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a pod of many containers, each with many files open, takes the agent's memory."""
    monkeypatch.setattr("cedana_sched.cluster.node.pod_runtime.MOST_BYTES", 1_000)
    monkeypatch.setattr("cedana_sched.cluster.node.containers.open_volume_files.bind_mounts", lambda _: ("/",))
    monkeypatch.setattr("cedana_sched.cluster.node.containers.open_volume_files.volume_files_of", held_of_600_bytes)
    for name in ("a", "b", "c"):
        host.container(name, name=name, state=state(cgroup_paths={"": f"/sys/fs/cgroup/{name}"}))
        folder = host.folder(Path(f"/sys/fs/cgroup/{name}"))
        (folder / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        (folder / "cgroup.procs").write_text("")
    running = await runtime.find_running(POD)
    assert running is not None
    assert [VOLUME_FILES in tree.notes for tree in running.containers] == [True, False, False]


def held_of_600_bytes(processes: object, volumes: object, most_bytes: int) -> VolumeFiles:
    if most_bytes < 600:
        raise ValueError("too many")
    return VolumeFiles(("/",), (VolumeFile(7, "cwd", "x" * 500, 0o40755, 0, 0),))


async def test_the_restore_container_is_frozen_beside_the_others_and_is_no_part_of_the_snapshot(
    runtime: PodRuntime, host: Host
) -> None:
    """The kubelet may start both at once after a reboot, and who may execute commands in the pod may do so there."""
    host.container("r", name="cedana-restore", state=state(cgroup_paths={"": "/sys/fs/cgroup/r"}))
    assert await runtime.find_running(POD) is None, "nothing of it has begun"
    host.container("a", state=state(cgroup_paths={"": "/sys/fs/cgroup/a"}))
    running = await runtime.find_running(POD)
    assert running is not None
    assert running.restore_facts["containers"] == ["main"]
    assert running.freezer_cgroups == (host.root / "sys/fs/cgroup/a", host.root / "sys/fs/cgroup/r")


async def test_who_looks_for_ever_into_one_pod_sees_the_others(
    runtime: PodRuntime, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant mounts a server of his own in a volume, and ends it: whoever looks there then waits in the kernel."""
    host.container("a")
    host.container("b", pod="p2")
    answers = threading.Event()

    def look(container: Container, places: HostPaths) -> RunningContainer:
        if container.bundle.name == "a":
            answers.wait()
        return describe(container, places)

    monkeypatch.setattr("cedana_sched.cluster.node.pod_runtime.describe", look)
    orders = [asyncio.create_task(runtime.find_running(POD)) for _ in range(40)]
    try:
        other = await asyncio.wait_for(runtime.find_running(structs.replace(POD, uid="p2")), 60)
        assert other is not None
        assert not any(order.done() for order in orders)
    finally:
        answers.set()
    assert all(await asyncio.gather(*orders))


async def test_a_doomed_pod_counts_as_ended(runtime: PodRuntime, pending_kills: PendingKills, host: Host) -> None:
    host.container("a")
    assert await runtime.kill_frozen("c1", POD) is False
    assert await runtime.find_running(POD) is None
    await runtime.undo_kill("c2", POD)
    assert await runtime.find_running(POD) is None, "another checkpoint dooms it"
    await runtime.undo_kill("c1", POD)
    assert await runtime.find_running(POD) is not None
    await runtime.kill_frozen("c1", POD)
    pending_kills.drop(POD.uid)
    assert await runtime.find_running(POD) is not None


async def test_a_doomed_pod_ends_when_the_coordinator_insists(runtime: PodRuntime, host: Host) -> None:
    host.container("a")
    assert await runtime.kill_frozen("c1", POD) is False
    assert await runtime.kill_frozen("c0", POD, insist=True) is False, "it is there, frozen"
    assert await runtime.find_running(POD) is None, "another checkpoint dooms it"
    assert await runtime.kill_frozen("c1", POD, insist=True) is True


async def test_an_end_that_is_insisted_on_is_told_as_it_is(runtime: PodRuntime, host: Host) -> None:
    assert await runtime.kill_frozen("c1", POD, insist=True) is True, "nothing of it is left"
    host.container("a")
    assert await runtime.kill_frozen("c1", POD, insist=True) is False, "it was spared, and runs"
