"""Whether this machine can carry a cluster: asked before anything is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from ipaddress import IPv4Network
from pathlib import Path

import psutil

from tests.cluster.errors import ClusterError
from tests.cluster.kind_config.shape import ClusterShape
from tests.cluster.machine import cgroups
from tests.cluster.place import HOME_VARIABLE, Place, home

_PROGRAMS = ("ip", "nsenter", "unshare", "pivot_root", "setpriv", "flock", "sysctl", "debootstrap", "buildah")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
_NAMESPACES = ("net", "pid", "mnt", "uts", "ipc", "cgroup")
_MEMORY_OF_CONTROL_PLANE = 1 << 30
_MEMORY_OF_NODE = 400 << 20
_DISK = 3 << 30
_NEEDED_FILE_SYSTEMS = ("overlay", "tmpfs", "proc", "sysfs")


def check_machine(shape: ClusterShape) -> None:
    """Ask for everything that would fail later with a worse message.

    Raises:
        ClusterError: the first thing that is missing.
    """
    _check_root()
    _check_programs()
    _check_kernel()
    _check_memory(len(shape.nodes))
    _check_home()
    _check_mounts(shape)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("a cluster makes namespaces, mounts and control groups", remedy="run it as root")
    effective = _effective_capabilities()
    if missing := [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]:
        raise ClusterError(
            f"root has no {', '.join(missing)} here",
            remedy="run it outside of this container, or give the container these capabilities",
        )


def _effective_capabilities() -> int:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _check_programs() -> None:
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise ClusterError(
            f"{', '.join(missing)} not found",
            remedy="run `make cluster-packages`, or install what tests/cluster/packages.txt names",
        )


def _check_kernel() -> None:
    for name in _NEEDED_FILE_SYSTEMS:
        if name not in _file_systems() and not _loaded(name):
            raise ClusterError(f"this kernel knows no file system {name}", remedy="use a kernel that has it")
    if missing := [name for name in _NAMESPACES if not Path("/proc/self/ns", name).exists()]:
        raise ClusterError(
            f"this kernel has no {', '.join(missing)} namespaces", remedy="use a kernel with namespaces built in"
        )
    if missing := cgroups.missing_controllers():
        raise ClusterError(
            f"the control group controllers {', '.join(missing)} are not there",
            remedy=f"mount them below {cgroups.MOUNT}, or boot with cgroup_enable={missing[0]}",
        )


def _file_systems() -> set[str]:
    return {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}


def _loaded(file_system: str) -> bool:
    """Whether the kernel knows it now: many come as modules, which are loaded when they are first needed."""
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "--quiet", file_system], stderr=subprocess.DEVNULL, check=False)
    return file_system in _file_systems()


def _check_memory(nodes: int) -> None:
    needed = _MEMORY_OF_CONTROL_PLANE + nodes * _MEMORY_OF_NODE
    available = psutil.virtual_memory().available
    if available < needed:
        raise ClusterError(
            f"{available >> 20} MiB of memory are available; {nodes} nodes and their control plane need {needed >> 20}",
            remedy="end other programs, or take a KIND_CONFIG with fewer nodes",
        )


def _check_home() -> None:
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"{folder}, where clusters live, cannot be made: {error.strerror}",
            remedy=f"set {HOME_VARIABLE} to another folder",
        ) from error
    if (kind := _file_system(folder.resolve())) in {"overlay", "tmpfs", "ramfs"}:
        raise ClusterError(
            f"{folder} is on {kind}, which cannot carry the nodes' own overlays and their data",
            remedy=f"set {HOME_VARIABLE} to a folder on a disk (ext4, xfs, btrfs)",
        )
    free = shutil.disk_usage(folder).free
    if free < _DISK:
        raise ClusterError(
            f"{free >> 20} MiB are free in {folder}; a cluster needs {_DISK >> 20}",
            remedy=f"free some, or set {HOME_VARIABLE} to a folder on another disk",
        )


def _file_system(folder: Path) -> str:
    """The type of what is mounted deepest above a folder; of mounts over one another the last."""
    above = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return str(max(reversed(above), key=lambda part: len(part.mountpoint)).fstype)


def _check_mounts(shape: ClusterShape) -> None:
    for node in shape.nodes:
        for mount in node.mounts:
            if not mount.host_path.exists():
                raise ClusterError(
                    f"{mount.host_path}, which {node.name_suffix} shall see as {mount.container_path}, does not exist",
                    remedy="make it, or correct extraMounts in the kind config",
                )


def check_networks(place: Place, shape: ClusterShape) -> None:
    """Ask whether the cluster's networks can stand beside one another.

    Raises:
        ClusterError: two overlap, or one is too small.
    """
    networks = {
        "networking.podSubnet": shape.pod_subnet,
        "networking.serviceSubnet": shape.service_subnet,
        "the nodes' network": place.node_network,
        "the link to this host": place.link,
    }
    names = list(networks)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            if networks[first].overlaps(networks[second]):
                raise ClusterError(
                    f"{first} {networks[first]} overlaps {second} {networks[second]}",
                    remedy="choose another range in the kind config",
                )
    _check_size(shape.pod_subnet, len(shape.nodes))


def _check_size(pods: IPv4Network, nodes: int) -> None:
    if pods.prefixlen > 24 or 2 ** (24 - pods.prefixlen) < nodes:
        raise ClusterError(
            f"networking.podSubnet {pods} has no /24 for each of {nodes} nodes", remedy="choose a larger range"
        )
