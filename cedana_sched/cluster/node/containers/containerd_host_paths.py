"""Paths of containerd, runc and the kubelet on the host, and their translation for the agent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cedana_sched.model.path_segment_validation import validate_segment


class HostPaths(msgspec.Struct, frozen=True):
    """Host paths; `agent_path` translates one to the agent's own.

    An agent in a container that shares the host's PID namespace sees all of the host below `/proc/1/root`. For CRIU,
    which runs in the host's mount namespace, that path leads to the same files.
    """

    host_root: Path = Path("/")
    bundles: Path = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
    """One folder per container with its OCI bundle, created by containerd's shim."""
    states: Path = Path("/run/containerd/runc/k8s.io")
    """One folder per container with runc's `state.json`."""
    pods: Path = Path("/var/lib/kubelet/pods")
    """One folder per pod, by its uid, with its volumes."""

    def agent_path(self, path: Path) -> Path:
        """Return the agent's path of a file of the host."""
        return self.host_root / path.relative_to("/")

    def pod_folder(self, uid: str) -> Path:
        """Return the agent's path of the folder in which the kubelet keeps a pod's volumes."""
        return self.agent_path(self.pods) / validate_segment("pod", uid)
