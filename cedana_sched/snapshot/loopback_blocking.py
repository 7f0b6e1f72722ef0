"""Loopback TCP between process trees of one network namespace, cut while they are dumped or restored one by one.

CRIU blocks the packets of a tree's own connections while it dumps or restores that tree. For connections between a
pod's containers that is too short: an end that is dumped first does not have the data that its kernel receives and
acknowledges until the other end is dumped, and so loses them; an end that is restored first is reset, because there is
no other. So TCP on the loopback device, where these connections are, is cut from the first tree to the last. TCP
retransmits what was dropped meanwhile. Packets that CRIU itself sends, to restore a half-closed connection, have a mark
and pass.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.criu_toolchain import Toolchain

_TABLE = "inet cedana-sched"
_CRIU_TABLE = re.compile(r"^table inet CRIU-\S+$", re.MULTILINE)
_CRIU_MARK = "0xC114"  # soccr.h, SOCCR_MARK
_RULES = f"""\
add table {_TABLE}
delete table {_TABLE}
add table {_TABLE}
add chain {_TABLE} loopback {{ type filter hook input priority raw; }}
add rule {_TABLE} loopback meta mark {_CRIU_MARK} accept
add rule {_TABLE} loopback iifname "lo" meta l4proto tcp drop
"""
_NO_RULES = f"add table {_TABLE}\ndelete table {_TABLE}\n"


def block_loopback_tcp(toolchain: Toolchain, namespace: Path) -> None:
    """Drop TCP between the processes of a network namespace. Idempotent.

    Args:
        toolchain: for its `nft`.
        namespace: like /proc/PID/ns/net; never the machine's own.

    Raises:
        SnapshotError: the kernel refuses the rules.
    """
    _run_nft(toolchain, namespace, _RULES)


def unblock_loopback_tcp(toolchain: Toolchain, namespace: Path) -> None:
    """Pass loopback TCP again. Idempotent.

    Raises:
        SnapshotError: the kernel refuses.
    """
    _run_nft(toolchain, namespace, _NO_RULES)


def remove_criu_tables(toolchain: Toolchain, namespace: Path) -> None:
    """Remove the tables of a failed CRIU, which drop every packet of the namespace.

    Raises:
        SnapshotError: the kernel refuses.
    """
    tables = _CRIU_TABLE.findall(_run_nft(toolchain, namespace, "list tables"))
    if tables:
        _run_nft(toolchain, namespace, "".join(f"delete {table}\n" for table in tables))


def shared_namespaces(pids: Iterable[int]) -> list[Path]:
    """Return each network namespace that several of these processes share, except this process's own."""
    found: dict[int, list[Path]] = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # ended
            path = Path(f"/proc/{pid}/ns/net")
            found.setdefault(path.stat().st_ino, []).append(path)
    found.pop(Path("/proc/self/ns/net").stat().st_ino, None)
    return [paths[0] for paths in found.values() if len(paths) > 1]


def _run_nft(toolchain: Toolchain, namespace: Path, commands: str) -> str:
    done = subprocess.run(
        ["nsenter", f"--net={namespace}", "--", toolchain.nft, "--file", "-"],
        input=commands.encode(), capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SnapshotError(
            f"the connections within {namespace} cannot be held",
            remedy="the kernel needs nf_tables, as CRIU does",
            evidence=tuple(done.stderr.decode(errors="replace").splitlines()),
        )
    return done.stdout.decode(errors="replace")  # the workload's own tables may have any name
