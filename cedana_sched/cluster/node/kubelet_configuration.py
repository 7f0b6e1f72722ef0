"""The configuration of this node's kubelet.

No API serves it to an agent: the agent reads the kubelet's process, its arguments and its files. If there is no such
process (k3s runs the kubelet inside its own), the agent reads the kubelet's folder. A process of a pod may take any
name, and have files that never end or that grow a thousandfold when read: such a process is distinguished by its PID
namespace, which is not the node's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_MOST_BYTES = 1 << 20


class KubeletConfiguration(NamedTuple):
    """What a kubelet was started with."""

    content: Mapping[str, Any]
    """The KubeletConfiguration of its files; empty if it has none."""
    arguments: tuple[str, ...] = ()

    def flag_value(self, name: str) -> str | None:
        """Return the last value of a flag; None if it is not set."""
        found = None
        for word, following in pairwise([*self.arguments, ""]):
            if word == f"--{name}":
                found = following
            elif word.startswith(f"--{name}="):
                found = word.partition("=")[2]
        return found


class KubeletConfigurationReader:
    """The kubelet of this node.

    Args:
        folder: its directory of files, as this process sees it.
        proc: the node's processes.
    """

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc

    def read(self) -> KubeletConfiguration:
        """Read the configuration again; blocks for some milliseconds.

        Raises:
            OSError, ValueError, yaml.YAMLError: a file is unreadable or no mapping.
        """
        process = self._find_process()
        if process is None:
            path = self._folder / "config.yaml"
            return KubeletConfiguration(_read_mapping(path) if path.exists() else {})
        arguments, root = process
        flags = KubeletConfiguration({}, arguments)
        named = flags.flag_value("config")
        content = _read_mapping(root / named.lstrip("/")) if named else {}
        if folder := flags.flag_value("config-dir"):
            for path in sorted((root / folder.lstrip("/")).glob("*.conf")):
                content = _merged(content, _read_mapping(path))
        return KubeletConfiguration(content, arguments)

    def _find_process(self) -> tuple[tuple[str, ...], Path] | None:
        """Return the arguments of a running kubelet, and its root as this process sees it."""
        of_node = (self._proc / "1/ns/pid").readlink()
        for path in self._proc.glob("[0-9]*"):
            try:
                if (path / "ns/pid").readlink() != of_node:
                    continue
                arguments = (path / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has exited, or is a process that cannot be trusted
            if Path(arguments[0]).name == "kubelet":
                return tuple(arguments[1:]), path / "root"
        return None


def _read_mapping(path: Path) -> dict[str, Any]:
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
