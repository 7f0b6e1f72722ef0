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
    """Of all processes of one kind.

    Attributes:
        cpu_seconds: processor seconds so far.
        peak_bytes: the most memory that one of them ever had.
        seconds_of: processor seconds of each, by its pid.
        ended: of those that there were at the beginning, how many are no more; what they had used last is not known.
    """

    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    seconds_of: dict[int, float] = {}
    ended: int = 0

    def since(self, before: Usage) -> Usage:
        """What was used meanwhile; the peak is that of all time."""
        seconds = {pid: used - before.seconds_of.get(pid, 0.0) for pid, used in self.seconds_of.items()}
        ended = len(before.seconds_of.keys() - self.seconds_of.keys())
        return Usage(sum(seconds.values()), self.peak_bytes, seconds, ended)


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
    peak = 0
    seconds: dict[int, float] = {}
    for process in all_processes():
        if process.pid not in members or program not in {Path(word).name for word in words_of(process)[:4]}:
            continue
        with contextlib.suppress(psutil.Error, OSError):  # it ends while one looks
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
            found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
            peak = max(peak, int(found[1]) << 10 if found else 0)
    return Usage(sum(seconds.values()), peak, seconds)
