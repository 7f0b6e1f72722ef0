"""What the kubelet of this node wants to stay free on its disks: below that it evicts pods.

Nobody serves it: the agent reads the kubelet's process, its arguments and its files. Where there is no such process
(k3s has the kubelet inside its own), the folder of the kubelet is looked into, and then the kubelet's defaults count.
A process of a pod may call itself what it likes, and have files that never end or grow a thousandfold when they are
read: it is told by its PID namespace, which is not the node's.
The threshold above which it removes unused images (`imageGCHighThresholdPercent`) is no reason to keep a pod waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import yaml

from cedana_sched.agent.room import Reserve
from cedana_sched.kube.quantities import whole

MARGIN = 0.01
"""Of the disk, above the kubelet's threshold: it looks every ten seconds, and others write as well."""
_HARD: Mapping[str, str] = {
    "nodefs.available": "10%",
    "imagefs.available": "15%",
    "nodefs.inodesFree": "5%",
    "imagefs.inodesFree": "5%",
}
"""`evictionHard` of a kubelet that sets none of it; one that sets one signal has no default of others."""
_SPACE, _INODES = ".available", ".inodesFree"
_DISKS = ("nodefs", "imagefs", "containerfs")
_MOST_BYTES = 1 << 20

log = structlog.get_logger(__name__)


class _Kubelet(NamedTuple):
    """A running kubelet: its arguments, and its root as we see it."""

    arguments: tuple[str, ...]
    root: Path


class Kubelet:
    """The one of this node; `folder` is where it keeps its files, as we see it."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._said: str | None = None

    def keeps_free(self) -> Reserve:
        """Read it anew; blocks for some milliseconds."""
        try:
            found = reserve_of(self._thresholds())
        except (OSError, ValueError, yaml.YAMLError) as error:
            self._say(f"the kubelet's configuration cannot be read, its defaults count: {error}")
            return reserve_of([_HARD])
        self._say(f"staged snapshots leave {found.share:.0%} of the disk free, or {found.size >> 20} MiB")
        return found

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            log.info(line)

    def _thresholds(self) -> list[Mapping[str, str]]:
        kubelet = self._process()
        if kubelet is None:
            path = self._folder / "config.yaml"
            return _of_file(_read(path)) if path.exists() else [_HARD]
        named = _argument(kubelet, "config")
        content = _read(kubelet.root / named.lstrip("/")) if named else {}
        if folder := _argument(kubelet, "config-dir"):
            for path in sorted((kubelet.root / folder.lstrip("/")).glob("*.conf")):
                content = _merged(content, _read(path))
        hard, soft = _argument(kubelet, "eviction-hard"), _argument(kubelet, "eviction-soft")
        found = _of_file(content)
        return [_of_flag(hard) if hard is not None else found[0], _of_flag(soft) if soft is not None else found[1]]

    def _process(self) -> _Kubelet | None:
        of_node = (self._proc / "1/ns/pid").readlink()
        for path in self._proc.glob("[0-9]*"):
            try:
                if (path / "ns/pid").readlink() != of_node:
                    continue
                arguments = (path / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended meanwhile, or is none that we could believe
            if Path(arguments[0]).name == "kubelet":
                return _Kubelet(tuple(arguments[1:]), path / "root")
        return None


def reserve_of(thresholds: list[Mapping[str, str]]) -> Reserve:
    """What to leave free by these thresholds, each signal by its name, as a percentage or a quantity."""
    space, inodes = list(_values(thresholds, _SPACE)), list(_values(thresholds, _INODES))
    return Reserve(
        share=max((share for share, _ in space), default=0.0) + MARGIN,
        size=max((size for _, size in space), default=0),
        inode_share=max((share for share, _ in inodes), default=0.0) + MARGIN,
        inodes=max((size for _, size in inodes), default=0),
    )


def _values(thresholds: list[Mapping[str, str]], kind: str) -> Iterator[tuple[float, int]]:
    for signals in thresholds:
        for signal in (disk + kind for disk in _DISKS):
            value = str(signals.get(signal, "0%")).strip()
            if value.endswith("%"):
                yield min(max(float(value[:-1]) / 100, 0.0), 1.0), 0
            else:
                yield 0.0, whole(value)


def _of_file(content: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """`evictionHard` and `evictionSoft` of a KubeletConfiguration."""
    hard, soft = content.get("evictionHard"), content.get("evictionSoft")
    if not isinstance(hard, dict) or not hard:
        hard = _HARD
    elif content.get("mergeDefaultEvictionSettings"):
        hard = {**_HARD, **hard}
    return [hard, soft if isinstance(soft, dict) else {}]


def _of_flag(value: str) -> Mapping[str, str]:
    """`nodefs.available<10%,imagefs.available<15%`."""
    pairs = (item.partition("<") for item in value.split(","))
    return {signal.strip(): threshold for signal, _, threshold in pairs}


def _argument(kubelet: _Kubelet, name: str) -> str | None:
    """The last one counts; None where there is none."""
    found = None
    words = [*kubelet.arguments, ""]
    for word, following in pairwise(words):
        if word == f"--{name}":
            found = following
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def _read(path: Path) -> dict[str, Any]:
    """A YAML or JSON file.

    Raises:
        OSError, ValueError, yaml.YAMLError: it is none.
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
