"""A workload's own nftables may have names that are no text: what a killed CRIU left there is undone all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.killed_dump_cleanup import remove_network_lock
from cedana_sched.snapshot.loopback_blocking import block_loopback_tcp, remove_criu_tables, unblock_loopback_tcp

pytestmark = pytest.mark.criu

NAMING = r"""
import ctypes, socket, struct, sys

def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)

def message(kind, flags, family, subsystem, payload=b""):
    body = struct.pack(">BBH", family, 0, subsystem) + payload
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body

assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
netlink.bind((0, 0))
for name in (b"\xff\xfe\0", b"CRIU-0123456789abcdef\0"):
    table = message(10 << 8, 1 | 4 | 0x400, 1, 0, attribute(1, name))  # NFT_MSG_NEWTABLE, of inet
    netlink.send(message(0x10, 1, 0, 10) + table + message(0x11, 1, 0, 10))
    assert struct.unpack_from("=i", netlink.recv(4096), 16) == (0,)
print("named", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def namespace() -> Iterator[Path]:
    """A network namespace with a table of no readable name, and one that a CRIU has left; as /proc/PID/ns/net."""
    with subprocess.Popen([sys.executable, "-c", NAMING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        yield Path(f"/proc/{process.pid}/ns/net")
        assert process.stdin is not None
        process.stdin.close()


def tables(toolchain: Toolchain, namespace: Path) -> list[bytes]:
    command = ["nsenter", f"--net={namespace}", "--", str(toolchain.nft), "list", "tables"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()


def test_the_network_lock_is_found_beside_them(toolchain: Toolchain, namespace: Path, tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text("(00.000001) CRIU run id = 0123456789abcdef\n")
    assert remove_network_lock(toolchain, log, [int(namespace.parts[2])])
    assert tables(toolchain, namespace) == [b"table inet \xff\xfe"]


def test_connections_are_held_and_let_go_beside_them(toolchain: Toolchain, namespace: Path) -> None:
    block_loopback_tcp(toolchain, namespace)
    unblock_loopback_tcp(toolchain, namespace)
    remove_criu_tables(toolchain, namespace)
    assert tables(toolchain, namespace) == [b"table inet \xff\xfe"]
