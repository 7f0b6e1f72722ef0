"""The privileges that a running container permits its processes, and those that the processes have."""

from __future__ import annotations

from typing import Any

import msgspec

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import freezer_of
from cedana_sched.runtime_handler.oci_confinement import confinement_of
from cedana_sched.runtime_handler.privilege_comparison import Confinement, Privileges
from cedana_sched.runtime_handler.process_credentials import credentials_of
from cedana_sched.snapshot import freezer

PRIVILEGES, IMAGES = "privileges", "images"
"""Keys in a pod's restore facts: records of `privilege_record`, and images as in the pod's spec, both by container
name."""
SERVICE_ACCOUNT = "service_account"
"""Key in a pod's restore facts: the name of its ServiceAccount."""


def privileges_of(container: Container, paths: HostPaths) -> Privileges:
    """Return the privileges of a frozen container; those of a running one may change a moment later.

    Raises:
        ValueError: its config.json is invalid.
        OSError: it is gone, or cannot be read.
    """
    confinement = read_confinement(container, paths)
    members = freezer.pids_in_cgroup(paths.agent_path(freezer_of(container.state)))
    return Privileges(confinement, credentials_of(members, confinement))


def read_confinement(container: Container, paths: HostPaths) -> Confinement:
    """Return what the container's config.json permits.

    Raises:
        ValueError: it is invalid.
        OSError: it is gone, or cannot be read.
    """
    content = (paths.agent_path(container.bundle) / "config.json").read_bytes()
    return confinement_of(msgspec.json.decode(content, type=dict[str, Any]))
