"""Which network namespaces are held while the containers of a pod come back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from cedana_sched.cluster.node.restoring import intra_pod_connections
from cedana_sched.cluster.node.restoring.intra_pod_connections import IntraPodConnections
from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from tests.unit.cluster.node.bundle_tree import Host, start_of, state

PAIR = ("main", "side")
NAMESPACE = Path(f"/proc/{os.getpid()}/ns/net")


class Calls:
    """What the kernel is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Path] = []
        self.released: list[Path] = []
        monkeypatch.setattr(
            intra_pod_connections, "block_loopback_tcp", lambda _, namespace: self.held.append(namespace)
        )
        monkeypatch.setattr(
            intra_pod_connections, "unblock_loopback_tcp", lambda _, namespace: self.released.append(namespace)
        )
        self.unlocked: list[Path] = []
        monkeypatch.setattr(
            intra_pod_connections, "remove_criu_tables", lambda _, namespace: self.unlocked.append(namespace)
        )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A pod whose own container is this test's process, on a node that seems to have another network."""
    host = Host(tmp_path / "host")
    host.container("sandbox", kind="sandbox")
    node = tmp_path / "node"
    node.touch()
    monkeypatch.setattr(intra_pod_connections, "_OWN", node)
    return host


def connections(host: Host) -> IntraPodConnections:
    return IntraPodConnections(host.places, cast("Toolchain", None))


def test_those_between_two_containers_are_held_and_released(host: Host, calls: Calls) -> None:
    connections(host).hold("p1", PAIR)
    assert (calls.held, calls.released) == ([NAMESPACE], [])
    connections(host).release("p1", PAIR)
    assert calls.released == [NAMESPACE]


def test_a_single_container_and_another_pod_are_left_alone(host: Host, calls: Calls) -> None:
    connections(host).hold("p1", ["main"])
    connections(host).hold("p2", PAIR)
    assert calls.held == []


def test_what_did_not_come_back_is_unlocked_also_when_it_is_one_container(host: Host, calls: Calls) -> None:
    connections(host).unlock_network("p1")
    connections(host).unlock_network("p2")
    assert calls.unlocked == [NAMESPACE]


def test_the_network_of_the_node_is_never_touched(host: Host, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intra_pod_connections, "_OWN", Path("/proc/self/ns/net"))
    connections(host).hold("p1", PAIR)
    connections(host).release("p1", PAIR)
    connections(host).unlock_network("p1")
    assert (calls.held, calls.released, calls.unlocked) == ([], [], [])


def test_a_pod_that_ended_has_none(host: Host, calls: Calls) -> None:
    host.container("sandbox", kind="sandbox", state=state(start=start_of(os.getpid()) - 1))
    connections(host).release("p1", PAIR)
    assert calls.released == []


def test_a_pod_that_ends_just_then_is_no_error_and_one_that_lives_is(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Toolchain, namespace: Path) -> None:
        raise SnapshotError(f"{namespace} is refused")

    def ends(_: Toolchain, namespace: Path) -> None:
        host.container("sandbox", kind="sandbox", state=state(start=start_of(os.getpid()) - 1))
        refuses(_, namespace)

    monkeypatch.setattr(intra_pod_connections, "unblock_loopback_tcp", refuses)
    with pytest.raises(SnapshotError):
        connections(host).release("p1", PAIR)
    monkeypatch.setattr(intra_pod_connections, "unblock_loopback_tcp", ends)
    connections(host).release("p1", PAIR)
