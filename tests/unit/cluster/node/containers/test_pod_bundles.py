"""The containers of a pod are found among the bundles of a node, as long as they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.ephemeral_volumes import volumes_of
from cedana_sched.runtime_handler.held_processes import pid_in_namespace
from cedana_sched.runtime_handler.progress_signs import ProgressSigns
from cedana_sched.snapshot import freezer, stall_detection, stopped
from cedana_sched.snapshot.preflight import find_obstacles
from tests.processes import without_first_thread
from tests.unit.cluster.node.bundle_tree import MOUNTS, Host, start_of, state


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def names(host: Host, pod: str = "p1") -> list[str]:
    return [container.name for container in Bundles(host.places).workload_containers(pod)]


def test_a_node_without_containerd_has_none(host: Host) -> None:
    assert names(host) == []


def test_the_containers_of_the_pod_and_no_others(host: Host) -> None:
    host.container("b", name="side")
    host.container("a", name="main")
    host.container("other", pod="p2")
    host.container("sandbox", kind="sandbox")
    host.container("waiting", name="cedana-restore")
    assert names(host) == ["main", "side"]


@pytest.mark.parametrize(
    "other", [{"args": ["/app"]}, {"args": ["cedana-sched-restore-wait", "/tmp"]}, {"args": None}, {"mounts": MOUNTS}]
)
def test_a_container_that_is_called_as_ours_is_one_as_any_other(host: Host, other: dict[str, Any]) -> None:
    """Where no webhook answers, any pod may have one, and it must not run on beside a dump."""
    host.container("s1", kind="sandbox")
    host.container("a")
    host.container("b", name="cedana-restore", **other)
    assert names(host) == ["cedana-restore", "main"]
    assert Bundles(host.places).running_incarnations() == {}


def test_paths_are_those_of_the_host(host: Host) -> None:
    host.container("a")
    (container,) = Bundles(host.places).workload_containers("p1")
    assert container.bundle == Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io/a")
    assert container.pid == os.getpid()


@pytest.mark.parametrize(
    "ended", [state(start=start_of(os.getpid()) - 1), state(pid=2**22 + 1, start=1)], ids=["number used again", "gone"]
)
def test_a_container_whose_first_process_is_gone_does_not_run(host: Host, ended: dict[str, object]) -> None:
    host.container("a", state=ended)
    assert names(host) == []


def test_a_container_whose_first_process_has_ended_its_first_thread_runs_until_all_have_ended(host: Host) -> None:
    """Else the agent would dump its pod without it, and take the pod for dead while it runs on."""
    with without_first_thread() as process:
        host.container("a", state=state(pid=process.pid))
        assert names(host) == ["main"]
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert names(host) == []


def test_half_written_files_count_as_none(host: Host) -> None:
    host.container("a")
    host.container("b", name="side")
    host.places.agent_path(host.places.bundles / "a" / "config.json").write_text('{"annot')
    host.places.agent_path(host.places.states / "b" / "state.json").unlink()
    assert names(host) == []


def test_bundles_that_come_and_go_are_noticed(host: Host) -> None:
    bundles = Bundles(host.places)
    host.container("a")
    assert len(bundles.workload_containers("p1")) == 1
    host.container("b", name="side")
    assert len(bundles.workload_containers("p1")) == 2
    host.places.agent_path(host.places.bundles / "a" / "config.json").unlink()
    host.places.agent_path(host.places.bundles / "a" / "rootfs").rmdir()
    host.places.agent_path(host.places.bundles / "a").rmdir()
    assert [container.bundle.name for container in bundles.workload_containers("p1")] == ["b"]


def test_empty_dirs_and_shared_memory_are_volumes(host: Host) -> None:
    folder = host.places.pods / "p1/volumes/kubernetes.io~empty-dir"
    for name in ("scratch", "cedana-restore"):
        host.folder(folder / name)
    host.container("a")
    found = volumes_of("p1", Bundles(host.places).workload_containers("p1"), host.places)
    assert found == {
        "scratch": host.root / "var/lib/kubelet/pods/p1/volumes/kubernetes.io~empty-dir/scratch",
        "_shm": host.root / "run/sandboxes/s1/shm",
    }


@pytest.mark.parametrize(
    "source", ["/dev/shm", "/srv/of-the-host", "/var/lib/kubelet/pods/p1/volumes/kubernetes.io~empty-dir/dshm"]
)
def test_shared_memory_of_the_machine_or_of_a_volume_is_none_of_the_pods_own(host: Host, source: str) -> None:
    host.container("a", mounts=[*MOUNTS[:-1], MOUNTS[-1] | {"source": source}])
    assert volumes_of("p1", Bundles(host.places).workload_containers("p1"), host.places) == {}


@pytest.fixture
def odd_name() -> Iterator[None]:
    """A name of this process that is no text, as of one that is cut off within a character."""
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    name.write_bytes(b"\xe4\xb8")
    yield
    name.write_bytes(before)


@pytest.mark.usefixtures("odd_name")
def test_process_may_have_any_name(host: Host, tmp_path: Path) -> None:
    """One pod's process, in a container that is called as ours, would else end the agent, and each that follows."""
    host.container("s1", kind="sandbox")
    host.container("a")
    host.container("b", name="cedana-restore")
    assert names(host) == ["main"]
    assert list(Bundles(host.places).running_incarnations()) == ["p1"]
    signs = ProgressSigns(os.getpid(), str(tmp_path / "log"), lambda: [os.getpid()])
    assert signs.has_progressed() in {True, False}
    find_obstacles([os.getpid()])
    assert "state" in stall_detection._describe_process(os.getpid())
    assert str(os.getpid()) in freezer._describe_process(os.getpid())
    assert stopped._read_start_time(os.getpid())
    assert pid_in_namespace(os.getpid())
