"""Connections between process trees of one network namespace, while the trees are dumped or restored one by one.

CRIU keeps the packets of a tree's own connections away while it dumps or restores that tree. Where a pod's containers
are connected to each other that is too short: an end that is dumped first does not know what its kernel receives and
acknowledges until the other end is dumped, and so loses it; an end that is restored first is told that there is no
other. So TCP on the loopback device, where these connections are, is cut from the first tree to the last. TCP sends
again what was lost meanwhile. Packets that CRIU itself makes, to bring a half-closed connection back, carry a mark and
pass.

Used by the agent's dump; whoever restores several trees into one namespace does the same.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.toolchain import Toolchain

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


def cut_loopback(toolchain: Toolchain, namespace: Path) -> None:
    """Drop TCP between the processes of a network namespace. Done twice, it is as if done once.

    Args:
        toolchain: for its `nft`.
        namespace: like /proc/PID/ns/net; never the machine's own.

    Raises:
        SnapshotError: the kernel refuses the rules.
    """
    _nft(toolchain, namespace, _RULES)


def mend_loopback(toolchain: Toolchain, namespace: Path) -> None:
    """Let it pass again; nothing happens if it does.

    Raises:
        SnapshotError: the kernel refuses.
    """
    _nft(toolchain, namespace, _NO_RULES)


def unlock(toolchain: Toolchain, namespace: Path) -> None:
    """Remove what a CRIU that failed has left: its tables drop every packet of the namespace.

    Raises:
        SnapshotError: the kernel refuses.
    """
    tables = _CRIU_TABLE.findall(_nft(toolchain, namespace, "list tables"))
    if tables:
        _nft(toolchain, namespace, "".join(f"delete {table}\n" for table in tables))


def shared_namespaces(pids: Iterable[int]) -> list[Path]:
    """The network namespaces that several of these processes are in, each once, but this process's own."""
    found: dict[int, list[Path]] = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            path = Path(f"/proc/{pid}/ns/net")
            found.setdefault(path.stat().st_ino, []).append(path)
    found.pop(Path("/proc/self/ns/net").stat().st_ino, None)
    return [paths[0] for paths in found.values() if len(paths) > 1]


def _nft(toolchain: Toolchain, namespace: Path, commands: str) -> str:
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
