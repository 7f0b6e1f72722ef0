"""The pods of this node's containers according to containerd, including pods that the API server no longer has."""

from __future__ import annotations

import msgspec

from cedana_sched.cluster.node.containers.bundles import Specification
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths

_UID, _NAMESPACE, _NAME = (f"io.kubernetes.cri.sandbox-{word}" for word in ("uid", "namespace", "name"))
"""Annotations that containerd puts on every container (`DefaultCRIAnnotations` in its internal/cri/annotations)."""


def find_pod_names(pod_uid: str, paths: HostPaths) -> set[tuple[str, str]]:
    """Return namespace and name of the pods with this uid that have a sandbox or container here; blocks for some ms."""
    found = set()
    for path in paths.agent_path(paths.bundles).glob("*/config.json"):
        try:
            notes = msgspec.json.decode(path.read_bytes(), type=Specification).annotations
        except (FileNotFoundError, msgspec.DecodeError):
            continue  # it has just been removed, or is being written
        if notes.get(_UID) == pod_uid:
            found.add((notes.get(_NAMESPACE, ""), notes.get(_NAME, "")))
    return found
