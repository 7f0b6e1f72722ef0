"""Where a cluster begins and ends: its name and slot are claimed, and all that bears its name is removed.

Nothing of a cluster is found by remembering process numbers: its processes are those of its control group, its
namespaces, interface and folder carry its name or slot. So what a crashed run left is found as well.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.machine import network
from tests.cluster.machine.cgroups import ControlGroup, remove_tree
from tests.cluster.place import SLOTS, Place, home, link_of

STATE = "cluster.json"
"""Written last when a cluster comes up: its presence means that it is up."""

_SLOT = "slot"


def is_up(name: str) -> bool:
    return (home() / name / STATE).exists()


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Be the only one that brings this cluster up or takes it down.

    Raises:
        ClusterError: another process does.
    """
    home().mkdir(parents=True, exist_ok=True)
    with (home() / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"another process brings the cluster {name!r} up or down", remedy="wait for it, or set CLUSTER_NAME"
            ) from None
        yield


async def claim(name: str) -> Place:
    """A place for a new cluster: cleared of an earlier run's rest, with addresses that nobody else has.

    Raises:
        ClusterError: it is up, or no range of addresses is free.
    """
    if is_up(name):
        raise ClusterError(
            f"the cluster {name!r} is up already", remedy="run `make cluster-down` first, or set CLUSTER_NAME"
        )
    await remove(_place_of(name))
    with (home() / ".slots.lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        place = Place(name, await _free_slot())
        place.root.mkdir()
        (place.root / _SLOT).write_text(str(place.slot))
    return place


async def _free_slot() -> int:
    taken = {int(path.read_text()) for path in home().glob(f"*/{_SLOT}")}
    routed = await network.routed_networks()
    for slot in range(SLOTS):
        link = link_of(slot)
        if slot not in taken and not any(link.overlaps(other) for other in routed if other.prefixlen):
            return slot
    raise ClusterError(
        f"no range of addresses between {link_of(0)} and {link_of(SLOTS - 1)} is free",
        remedy="take clusters down, or the route that covers them",
    )


def place_of_running(name: str) -> Place:
    """The place of a cluster that is up.

    Raises:
        ClusterError: it is not.
    """
    if not is_up(name):
        raise ClusterError(f"the cluster {name!r} is not up", remedy="run `make cluster-up`")
    return _place_of(name)


def _place_of(name: str) -> Place:
    slot = home() / name / _SLOT
    return Place(name, int(slot.read_text()) if slot.exists() else SLOTS)


async def take_down(name: str) -> bool:
    """Remove every process, namespace, mount, control group and file of a cluster; False when there was nothing."""
    place = _place_of(name)
    found = place.root.exists() or (network.NAMESPACES / place.namespace).exists()
    await remove(place)
    return found


async def remove(place: Place, *, keep_logs: bool = False) -> None:
    """Remove all that bears the cluster's name."""
    (place.root / STATE).unlink(missing_ok=True)
    await asyncio.to_thread(ControlGroup(place.group).end)
    for namespace in (*network.namespaces(place.namespace_prefix), place.namespace):
        await network.delete_namespace(namespace)
    if place.slot < SLOTS:
        await network.delete_link(place.interface)
    if keep_logs and place.logs.exists():
        kept = home() / f"{place.name}.failed-logs"
        remove_tree(kept)
        place.logs.rename(kept)
    await asyncio.to_thread(remove_tree, place.root)


def failed_logs(place: Place) -> Path:
    """Where the logs of a cluster that did not come up are kept."""
    return home() / f"{place.name}.failed-logs"
