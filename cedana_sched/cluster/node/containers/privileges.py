"""What a container that runs allows its processes, and what they have."""

from __future__ import annotations

from typing import Any

import msgspec

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.description import freezer_of
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.runtime.confinement import confinement_of
from cedana_sched.runtime.credentials import credentials_of
from cedana_sched.runtime.privileges import Confinement, Privileges
from cedana_sched.snapshot import freezer

PRIVILEGES, IMAGES = "privileges", "images"
"""Restore facts of a pod: records of `privilege_record`, and images as the pod names them, by containers' names."""
SERVICE_ACCOUNT = "service_account"
"""Another one: the name of the pod's ServiceAccount."""


def privileges_of(container: Container, places: Places) -> Privileges:
    """Of a frozen container; of one that runs it may be different a moment later.

    Raises:
        ValueError: its config.json cannot be understood.
        OSError: it is gone, or cannot be read.
    """
    confinement = confinement_in(container, places)
    members = freezer.members(places.here(freezer_of(container.state)))
    return Privileges(confinement, credentials_of(members, confinement))


def confinement_in(container: Container, places: Places) -> Confinement:
    """What its config.json allows.

    Raises:
        ValueError: it cannot be understood.
        OSError: it is gone, or cannot be read.
    """
    content = (places.here(container.bundle) / "config.json").read_bytes()
    return confinement_of(msgspec.json.decode(content, type=dict[str, Any]))
