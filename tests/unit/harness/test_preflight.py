"""What is asked of this machine before anything is started: each thing that is missing is one sentence."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.cluster import preflight
from tests.cluster.errors import ClusterError
from tests.cluster.kind_config.reading import parse
from tests.cluster.kind_config.shape import ClusterShape, Mount
from tests.cluster.machine import cgroups
from tests.cluster.place import HOME_VARIABLE, Place

_Partition = namedtuple("_Partition", ["mountpoint", "fstype"])  # noqa: PYI024 - psutil's own is private
_TWO_NODES = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes: [{role: control-plane}, {role: worker}]\n"


@pytest.fixture
def shape() -> ClusterShape:
    return parse(_TWO_NODES)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One that has everything, whatever this one has; what a test takes away it takes from here."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "_effective_capabilities", lambda: ~0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(preflight, "_file_systems", lambda: {"overlay", "tmpfs", "proc", "sysfs"})
    monkeypatch.setattr(cgroups, "missing_controllers", list)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 30))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 30))
    _mounted(monkeypatch, ("/", "ext4"))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "clusters"))
    return monkeypatch


def _mounted(machine: pytest.MonkeyPatch, *mounts: tuple[str, str]) -> None:
    machine.setattr(psutil, "disk_partitions", lambda all: [_Partition(*mount) for mount in mounts])  # noqa: A006


def _refused(shape: ClusterShape) -> str:
    with pytest.raises(ClusterError) as error:
        preflight.check_machine(shape)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_machine_that_has_everything_carries_a_cluster(shape: ClusterShape) -> None:
    preflight.check_machine(shape)


def test_not_root(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(os, "geteuid", lambda: 1000)
    assert _refused(shape) == "a cluster makes namespaces, mounts and control groups; run it as root"


def test_root_of_a_container(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(preflight, "_effective_capabilities", lambda: ~(1 << 21))
    assert _refused(shape).startswith("root has no CAP_SYS_ADMIN here; run it outside of this container")


def test_missing_programs(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(shutil, "which", lambda name: None if name in {"buildah", "ip"} else name)
    assert _refused(shape).startswith("ip, buildah not found; run `make cluster-packages`")


def test_missing_file_system(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(preflight, "_file_systems", lambda: {"tmpfs", "proc", "sysfs"})
    machine.setattr(preflight, "_loaded", lambda _: False)
    assert _refused(shape) == "this kernel knows no file system overlay; use a kernel that has it"


def test_file_system_that_is_loaded_when_it_is_needed(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(preflight, "_file_systems", lambda: {"tmpfs", "proc", "sysfs"})
    machine.setattr(preflight, "_loaded", lambda name: name == "overlay")
    preflight.check_machine(shape)


def test_missing_namespaces(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(preflight, "_NAMESPACES", ("net", "nosuch"))
    assert _refused(shape).startswith("this kernel has no nosuch namespaces; use a kernel")


def test_missing_controllers(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(cgroups, "missing_controllers", lambda: ["cpuset", "pids"])
    assert _refused(shape) == (
        "the control group controllers cpuset, pids are not there; "
        "mount them below /sys/fs/cgroup, or boot with cgroup_enable=cpuset"
    )


def test_too_little_memory_counts_the_nodes(machine: pytest.MonkeyPatch, shape: ClusterShape) -> None:
    machine.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1500 << 20))

    preflight.check_machine(replace(shape, nodes=shape.nodes[:1]))
    assert _refused(shape).startswith("1500 MiB of memory are available; 2 nodes and their control plane need 1824;")


def test_too_little_disk(machine: pytest.MonkeyPatch, shape: ClusterShape, tmp_path: Path) -> None:
    machine.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=500 << 20))
    assert _refused(shape).startswith(f"500 MiB are free in {tmp_path}/clusters; a cluster needs 3072; free some")


@pytest.mark.parametrize("kind", ["overlay", "tmpfs"])
def test_home_on_what_carries_no_overlay(
    kind: str, machine: pytest.MonkeyPatch, shape: ClusterShape, tmp_path: Path
) -> None:
    _mounted(machine, ("/", "ext4"), (str(tmp_path), "ext4"), (str(tmp_path), kind), (f"{tmp_path}/clusters2", "ext4"))
    assert _refused(shape).startswith(f"{tmp_path}/clusters is on {kind}, which cannot carry")


def test_home_that_cannot_be_made(machine: pytest.MonkeyPatch, shape: ClusterShape, tmp_path: Path) -> None:
    (tmp_path / "clusters").write_text("in the way")
    assert _refused(shape) == (
        f"{tmp_path}/clusters, where clusters live, cannot be made: File exists; set CLUSTER_HOME to another folder"
    )


def test_folder_that_a_node_shall_see_and_is_not_there(shape: ClusterShape, tmp_path: Path) -> None:
    node = replace(shape.nodes[1], mounts=(Mount(tmp_path / "nosuch", "/data", read_only=False),))

    assert _refused(replace(shape, nodes=(shape.nodes[0], node))) == (
        f"{tmp_path}/nosuch, which worker shall see as /data, does not exist; "
        "make it, or correct extraMounts in the kind config"
    )


@pytest.mark.parametrize(
    ("pods", "services", "said"),
    [
        ("10.244.0.0/16", "10.244.128.0/20", "networking.podSubnet 10.244.0.0/16 overlaps networking.serviceSubnet"),
        ("172.16.0.0/12", "10.96.0.0/16", "networking.podSubnet 172.16.0.0/12 overlaps the nodes' network"),
        ("10.244.0.0/16", "10.213.0.0/16", "networking.serviceSubnet 10.213.0.0/16 overlaps the link to this host"),
        ("10.244.0.0/24", "10.96.0.0/16", "networking.podSubnet 10.244.0.0/24 has no /24 for each of 2 nodes"),
        ("10.244.0.0/25", "10.96.0.0/16", "networking.podSubnet 10.244.0.0/25 has no /24 for each of 2 nodes"),
    ],
)
def test_networks_that_cannot_stand_beside_one_another(
    pods: str, services: str, said: str, shape: ClusterShape
) -> None:
    networks = replace(shape, pod_subnet=IPv4Network(pods), service_subnet=IPv4Network(services))

    with pytest.raises(ClusterError) as error:
        preflight.check_networks(Place("any", 0), networks)

    assert str(error.value).startswith(said)
    assert "; choose " in str(error.value)


def test_networks_of_kind_stand_beside_one_another(shape: ClusterShape) -> None:
    preflight.check_networks(Place("any", 0), shape)
