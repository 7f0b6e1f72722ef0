"""Where a cluster begins and ends: its name and slot are claimed, and all that bears its name is removed.

Nothing of a cluster is found by remembering process numbers: its processes are those of its control group, its
namespaces, interface and folder carry its name or slot. So what a crashed run left is found as well.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import TextIO

from tests.cluster.errors import ClusterError
from tests.cluster.machine import network
from tests.cluster.machine.cgroups import ControlGroup, remove_tree
from tests.cluster.place import HOME_VARIABLE, SLOTS, Place, home, link_of

STATE = "cluster.json"
"""Written last when a cluster comes up: its presence means that it is up."""

_SLOT = "slot"


def is_up(name: str) -> bool:
    return (home() / name / STATE).exists()


def mark_up(place: Place, state: str) -> None:
    """Say that a cluster is up, or what has become of it since, whole or not at all."""
    written = place.root / f"{STATE}.new"
    written.write_text(state)
    written.rename(place.root / STATE)


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Be the only one that brings this cluster up or takes it down; SIGTERM cancels the task that does.

    Raises:
        KeyboardInterrupt: SIGTERM came.
        ClusterError: another process does.
    """
    try:
        with _locked(f".{name}.lock", waits=False), _clean_end():
            yield
    except BlockingIOError:
        raise ClusterError(
            f"another process brings the cluster {name!r} up or down", remedy="wait for it, or set CLUSTER_NAME"
        ) from None


@contextmanager
def _locked(name: str, *, waits: bool) -> Iterator[None]:
    """Hold a lock that leaves no file behind.

    Raises:
        BlockingIOError: it is held, and nobody `waits`.
    """
    path = home() / name
    with _open_lock(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        if _is_file(lock, path):
            try:
                yield
            finally:
                path.unlink()
            return
    with _locked(name, waits=waits):  # whoever had it has deleted it: it is a new file by now
        yield


def _open_lock(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        raise ClusterError(
            f"{path.parent}, where clusters live, cannot be written to: {error.strerror}",
            remedy=f"run it as root, or set {HOME_VARIABLE}",
        ) from error


def _is_file(opened: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _clean_end() -> Iterator[None]:
    """Be cancelled by SIGTERM; not by way of Ctrl-C, which what a shell runs in the background ignores."""
    under_way = asyncio.current_task()
    assert under_way is not None, "a cluster is changed within a task"
    loop = asyncio.get_running_loop()
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        under_way.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        if terminated:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


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
    routed = await network.routed_networks()
    with _locked(".slots.lock", waits=True):  # held for a moment only
        place = Place(name, _free_slot(routed))
        place.root.mkdir()
        (place.root / _SLOT).write_text(str(place.slot))
    return place


def _free_slot(routed: Sequence[IPv4Network]) -> int:
    taken = {_slot_in(path) for path in home().glob(f"*/{_SLOT}")}
    for slot in range(SLOTS):
        link = link_of(slot)
        if slot not in taken and not any(link.overlaps(other) for other in routed if other.prefixlen):
            return slot
    raise ClusterError(
        f"no range of addresses between {link_of(0)} and {link_of(SLOTS - 1)} is free",
        remedy="take clusters down, or the route that covers them",
    )


def logs_of(name: str) -> Path:
    """The logs of a cluster that is up, or of one that did not come up.

    Raises:
        ClusterError: there are none.
    """
    logs = _place_of(name).logs
    if not logs.exists():
        raise ClusterError(f"the cluster {name!r} has no logs in {logs}", remedy="run `make cluster-up`")
    return logs


def place_of_running(name: str) -> Place:
    """The place of a cluster that is up.

    Raises:
        ClusterError: it is not.
    """
    if not is_up(name):
        raise ClusterError(f"the cluster {name!r} is not up", remedy="run `make cluster-up`")
    return _place_of(name)


def _place_of(name: str) -> Place:
    return Place(name, _slot_in(home() / name / _SLOT))


def _slot_in(file: Path) -> int:
    """`SLOTS` where none was claimed: a run may have been killed on its way."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdecimal() else SLOTS


async def take_down(name: str) -> bool:
    """Remove every process, namespace, mount, control group and file of a cluster; False when there was nothing."""
    place = _place_of(name)
    found = place.root.exists() or place.logs.exists() or (network.NAMESPACES / place.namespace).exists()
    await remove(place)
    return found


async def remove(place: Place, *, keep_logs: bool = False) -> None:
    """Remove all that bears the cluster's name; its logs too, unless they shall tell why it did not come up."""
    (place.root / STATE).unlink(missing_ok=True)
    await asyncio.to_thread(ControlGroup(place.group).end)
    for namespace in (*network.namespaces(place.namespace_prefix), place.namespace):
        await network.delete_namespace(namespace)
    if place.slot < SLOTS:
        await network.delete_link(place.interface)
    await asyncio.to_thread(remove_tree, place.root)
    if not keep_logs:
        await asyncio.to_thread(remove_tree, place.logs)
