"""The eviction thresholds of this node's kubelet: the free disk space below which it evicts pods.

Where its configuration cannot be read, the kubelet's defaults count. The threshold above which the kubelet removes
unused images (`imageGCHighThresholdPercent`) is no reason to delay a pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
import yaml

from cedana_sched.agent.staging import Reserve
from cedana_sched.cluster.node.kubelet_configuration import KubeletConfigurationReader
from cedana_sched.kube.quantities import parse_whole

MARGIN = 0.01
"""Share of the disk above the kubelet's threshold: the kubelet polls every ten seconds, and other processes write as
well."""
_HARD: Mapping[str, str] = {
    "nodefs.available": "10%",
    "imagefs.available": "15%",
    "nodefs.inodesFree": "5%",
    "imagefs.inodesFree": "5%",
}
"""`evictionHard` of a kubelet that sets none; a kubelet that sets one signal has no defaults for others."""
_SPACE, _INODES = ".available", ".inodesFree"
_DISKS = ("nodefs", "imagefs", "containerfs")

log = structlog.get_logger(__name__)


class KubeletThresholds:
    """The kubelet of this node; `folder` is its directory of files, as this process sees it."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._configuration = KubeletConfigurationReader(folder, proc)
        self._logged: str | None = None

    def read_reserve(self) -> Reserve:
        """Read the reserve again; blocks for some milliseconds."""
        try:
            found = reserve_of(self._thresholds())
        except (OSError, ValueError, yaml.YAMLError) as error:
            self._log_if_changed(f"the kubelet's configuration cannot be read, its defaults count: {error}")
            return reserve_of([_HARD])
        self._log_if_changed(f"staged snapshots leave {found.share:.0%} of the disk free, or {found.size >> 20} MiB")
        return found

    def _log_if_changed(self, line: str) -> None:
        if line != self._logged:
            self._logged = line
            log.info(line)

    def _thresholds(self) -> list[Mapping[str, str]]:
        read = self._configuration.read()
        hard, soft = read.flag_value("eviction-hard"), read.flag_value("eviction-soft")
        found = _thresholds_in_configuration(read.content)
        return [
            _parse_threshold_flag(hard) if hard is not None else found[0],
            _parse_threshold_flag(soft) if soft is not None else found[1],
        ]


def reserve_of(thresholds: list[Mapping[str, str]]) -> Reserve:
    """Return the free space these thresholds require; each signal, by its name, is a percentage or a quantity."""
    space, inodes = list(_threshold_values(thresholds, _SPACE)), list(_threshold_values(thresholds, _INODES))
    return Reserve(
        share=max((share for share, _ in space), default=0.0) + MARGIN,
        size=max((size for _, size in space), default=0),
        inode_share=max((share for share, _ in inodes), default=0.0) + MARGIN,
        inodes=max((size for _, size in inodes), default=0),
    )


def _threshold_values(thresholds: list[Mapping[str, str]], kind: str) -> Iterator[tuple[float, int]]:
    for signals in thresholds:
        for signal in (disk + kind for disk in _DISKS):
            value = str(signals.get(signal, "0%")).strip()
            if value.endswith("%"):
                yield min(max(float(value[:-1]) / 100, 0.0), 1.0), 0
            else:
                yield 0.0, parse_whole(value)


def _thresholds_in_configuration(content: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return `evictionHard` and `evictionSoft` of a KubeletConfiguration."""
    hard, soft = content.get("evictionHard"), content.get("evictionSoft")
    if not isinstance(hard, dict) or not hard:
        hard = _HARD
    elif content.get("mergeDefaultEvictionSettings"):
        hard = {**_HARD, **hard}
    return [hard, soft if isinstance(soft, dict) else {}]


def _parse_threshold_flag(value: str) -> Mapping[str, str]:
    """Parse `nodefs.available<10%,imagefs.available<15%`."""
    pairs = (item.partition("<") for item in value.split(","))
    return {signal.strip(): threshold for signal, _, threshold in pairs}
