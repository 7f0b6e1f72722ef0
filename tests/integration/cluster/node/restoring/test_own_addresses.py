"""The addresses of a network namespace are read as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from cedana_sched.cluster.node.restoring.own_addresses import read_network_addresses


@pytest.fixture
def network() -> Iterator[int]:
    """A process in a network of its own with two addresses, beside those of the loopback."""
    add = "ip link set lo up; ip addr add 10.7.0.9/24 dev lo; ip -6 addr add 2001:db8::9/64 dev lo nodad; "
    add += "echo ready; exec sleep 100"
    with subprocess.Popen(("unshare", "--net", "sh", "-ec", add), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_addresses_that_others_reach(network: int) -> None:
    assert read_network_addresses(network) == (ip_address("10.7.0.9"), ip_address("2001:db8::9"))


def test_kernel_without_ipv6(tmp_path: Path) -> None:
    folder = tmp_path / "7/net"
    folder.mkdir(parents=True)
    (folder / "fib_trie").write_text(Path(f"/proc/{os.getpid()}/net/fib_trie").read_text())
    assert all(one.version == 4 for one in read_network_addresses(7, tmp_path))
