"""A host's files as containerd, runc and the kubelet lay them, with processes that are this test's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.model.objects.names import RESTORE_COMMAND, RESTORE_CONTAINER

RESTORE_MOUNTS = [
    {
        "destination": "/run/cedana-restore",
        "type": "bind",
        "source": "/var/lib/kubelet/pods/p1/volumes/kubernetes.io~empty-dir/cedana-restore",
    }
]
MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/etc/hosts", "type": "bind", "source": "/var/lib/kubelet/pods/p1/etc-hosts"},
    {"destination": "/var/run/secrets/token", "type": "bind", "source": "/var/lib/kubelet/pods/p1/token"},
    {"destination": "/dev/shm", "type": "bind", "source": "/run/sandboxes/s1/shm"},
]


class Host:
    """Files below `root`; paths that are told to the code under test are those of the host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = HostPaths(host_root=root)

    def container(self, identifier: str, pod: str = "p1", name: str = "main", **changes: Any) -> None:
        """A container whose first process is this test's, unless `state` says otherwise; called as ours, it is ours.

        `args` and `mounts` are those of the bundle.
        """
        is_ours = name == RESTORE_CONTAINER
        annotations = {
            "io.kubernetes.cri.container-type": changes.get("kind", "container"),
            "io.kubernetes.cri.container-name": name,
            "io.kubernetes.cri.sandbox-uid": pod,
            "io.kubernetes.cri.sandbox-id": changes.get("sandbox", "s1"),
        }
        self.write(
            self.places.bundles / identifier / "config.json",
            {
                "ociVersion": "1.1.0",
                "annotations": annotations,
                "process": {"args": changes.get("args", [RESTORE_COMMAND] if is_ours else ["/app"])},
                "mounts": changes.get("mounts", [*MOUNTS, *RESTORE_MOUNTS] if is_ours else MOUNTS),
                "linux": {
                    "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/absent"],
                    "namespaces": [
                        {"type": "pid"},
                        {"type": "mount"},
                        {"type": "network", "path": "/proc/7/ns/net"},
                        {"type": "ipc", "path": "/proc/7/ns/ipc"},
                    ],
                },
            },
        )
        self.places.agent_path(self.places.bundles / identifier / "rootfs").mkdir(exist_ok=True)
        self.write(self.places.states / identifier / "state.json", changes.get("state", state()))

    def folder(self, path: Path) -> Path:
        here = self.places.agent_path(path)
        here.mkdir(parents=True)
        return here

    def write(self, path: Path, content: object) -> None:
        here = self.places.agent_path(path)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_text(json.dumps(content))


def state(pid: int | None = None, start: int | None = None, **changes: Any) -> dict[str, Any]:
    pid = pid or os.getpid()
    return {
        "init_process_pid": pid,
        "init_process_start": start_of(pid) if start is None else start,
        "cgroup_paths": {"freezer": "/sys/fs/cgroup/freezer/kubepods/p1/main", "pids": "/sys/fs/cgroup/pids/x"},
        "external_descriptors": ["/dev/null", "pipe:[11]", "pipe:[12]"],
    } | changes


def start_of(pid: int) -> int:
    """Of one that cannot end meanwhile.

    Raises:
        FileNotFoundError, ProcessLookupError: there is none.
    """
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[19])
