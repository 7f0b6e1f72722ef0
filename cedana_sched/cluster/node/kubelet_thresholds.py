"""The eviction thresholds of this node's kubelet: the free disk space below which it evicts pods.

No API serves them: the agent reads the kubelet's process, its arguments and its files. If there is no such process (k3s
runs the kubelet inside its own), the agent reads the kubelet's folder, and then the kubelet's defaults count. A process
of a pod may take any name, and have files that never end or that grow a thousandfold when read: such a process is
distinguished by its PID namespace, which is not the node's. The threshold above which the kubelet removes unused images
(`imageGCHighThresholdPercent`) is no reason to delay a pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import yaml

from cedana_sched.agent.staging import Reserve
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
_MOST_BYTES = 1 << 20

log = structlog.get_logger(__name__)


class _KubeletProcess(NamedTuple):
    """A running kubelet: its arguments, and its root as this process sees it."""

    arguments: tuple[str, ...]
    root: Path


class KubeletThresholds:
    """The kubelet of this node; `folder` is its directory of files, as this process sees it."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._said: str | None = None

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
        if line != self._said:
            self._said = line
            log.info(line)

    def _thresholds(self) -> list[Mapping[str, str]]:
        kubelet = self._find_kubelet_process()
        if kubelet is None:
            path = self._folder / "config.yaml"
            return _thresholds_in_configuration(_read(path)) if path.exists() else [_HARD]
        named = _flag_value(kubelet, "config")
        content = _read(kubelet.root / named.lstrip("/")) if named else {}
        if folder := _flag_value(kubelet, "config-dir"):
            for path in sorted((kubelet.root / folder.lstrip("/")).glob("*.conf")):
                content = _merged(content, _read(path))
        hard, soft = _flag_value(kubelet, "eviction-hard"), _flag_value(kubelet, "eviction-soft")
        found = _thresholds_in_configuration(content)
        return [
            _parse_threshold_flag(hard) if hard is not None else found[0],
            _parse_threshold_flag(soft) if soft is not None else found[1],
        ]

    def _find_kubelet_process(self) -> _KubeletProcess | None:
        of_node = (self._proc / "1/ns/pid").readlink()
        for path in self._proc.glob("[0-9]*"):
            try:
                if (path / "ns/pid").readlink() != of_node:
                    continue
                arguments = (path / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has exited, or is a process that cannot be trusted
            if Path(arguments[0]).name == "kubelet":
                return _KubeletProcess(tuple(arguments[1:]), path / "root")
        return None


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


def _flag_value(kubelet: _KubeletProcess, name: str) -> str | None:
    """Return the last value of a flag; None if it is not set."""
    found = None
    words = [*kubelet.arguments, ""]
    for word, following in pairwise(words):
        if word == f"--{name}":
            found = following
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def _read(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file.

    Raises:
        OSError, ValueError, yaml.YAMLError: the file is unreadable or no mapping.
    """
    with path.open("rb") as file:
        content = yaml.safe_load(file.read(_MOST_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no configuration")  # noqa: TRY004 - of a file's content
    return content


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = {**below[key], **above[key]}
    return merged
