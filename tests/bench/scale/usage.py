"""What processes have used, as the kernel counts it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec
import psutil

from tests.cluster.cluster import Cluster
from tests.cluster.machine.cgroups import ControlGroup
from tests.processes import all_processes, words_of

COORDINATOR = "cedana_sched.cluster.coordinator"
WEBHOOKS = "cedana_sched_webhooks"
API_SERVER = "kube-apiserver"
ETCD = "etcd"
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class Usage(msgspec.Struct, frozen=True):
    """Of all processes of one kind: processor seconds so far, and the most memory that one of them ever had (bytes)."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def since(self, before: Usage) -> Usage:
        """What was used meanwhile; the peak is that of all time."""
        return Usage(self.cpu_seconds - before.cpu_seconds, self.peak_bytes)


def coordinators(cluster: Cluster) -> Usage:
    """Of all replicas of the coordinator."""
    return _of(COORDINATOR, *(node.machine.group for node in cluster.nodes.values()))


def webhooks(cluster: Cluster) -> Usage:
    """Of all replicas of the webhooks."""
    return _of(WEBHOOKS, *(node.machine.group for node in cluster.nodes.values()))


def api_server(cluster: Cluster) -> Usage:
    """Of the API server."""
    return _of(API_SERVER, cluster.control_plane.machine.group)


def etcd(cluster: Cluster) -> Usage:
    """Of etcd."""
    return _of(ETCD, cluster.control_plane.machine.group)


def _of(program: str, *groups: ControlGroup) -> Usage:
    members = {pid for group in groups for pid in group.processes()}
    seconds, peak = 0.0, 0
    for process in all_processes():
        if process.pid not in members or program not in {Path(word).name for word in words_of(process)[:4]}:
            continue
        with contextlib.suppress(psutil.Error, OSError):  # it ends while one looks
            times = process.cpu_times()
            seconds += times.user + times.system
            found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
            peak = max(peak, int(found[1]) << 10 if found else 0)
    return Usage(seconds, peak)
