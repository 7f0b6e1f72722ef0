"""What a killed CRIU leaves behind, and how it is undone.

CRIU that fails undoes everything by itself. CRIU that is *killed* in the middle of a dump leaves:

    ptrace          gone by itself: the kernel detaches the tasks of a tracer that dies, and they run on at once
    injected code   goes by itself: it waits on a socket of CRIU's, sees it close, and returns to where the task was
                    (compel's `fini`); its few hundred KiB of memory stay mapped in the task
    helpers         processes of CRIU's own, some of them stopped: `dump` kills its whole process group
    cgroup          thawed by CRIU at the beginning of the dump; `dump` thaws it again in any case
    network lock    an nftables table `CRIU-<run id>` that drops the packets of the tree's connections, in the tree's
                    network namespace: removed here
    TCP sockets     in repair mode, where recv(2) fails with EPERM: switched back here
    stops           taken out of the queues of processes that were stopped: put back here (see `stopped`)

Two dangers remain, for kills that come from outside (the out-of-memory killer, a person):

* A task that is executing instructions which CRIU has written over its own program, or with registers that only CRIU
  knows, dies of SIGTRAP or SIGSEGV. Measured: 3 of 120 kills at random moments of the dump of a program with threads,
  all while code was being injected (CRIU's log ends with `Dump rseq`).
* A process that waits in recv(2) of a TCP connection runs before the repair mode is switched off, and sees EPERM.
  Measured: a program that does nothing but exchange messages died in 7 of 40 kills. When `dump` itself has to kill
  CRIU, it freezes the cgroup first, so that nothing runs until all is undone; against others there is no defence but
  to make CRIU the last choice of the out-of-memory killer, which `dump` tries.

A workload that dies this way continues from its previous snapshot.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedana_sched.snapshot.connections import wake_connections
from cedana_sched.snapshot.stopped import stop_again
from cedana_sched.snapshot.toolchain import Toolchain

_LAST_WORD = re.compile(rb"Dumping (FAILED|finished successfully)")
"""Of CRIU's log, written when everything is undone (criu/cr-dump.c, `cr_dump_finish`)."""
_PART_BYTES = 4096
_RUN_ID = re.compile(r"CRIU run id = ([0-9a-f-]+)")


def has_broken_off(log: Path) -> bool:
    """Whether the CRIU that wrote this log, and has ended, was killed: it ended without a last word."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _PART_BYTES))
            return not _LAST_WORD.search(file.read())
    except FileNotFoundError:
        return False


def undo_killed_dump(toolchain: Toolchain, pids: Iterable[int], log: Path) -> None:
    """Give the network back to the processes of a tree whose dump was killed."""
    pids = list(pids)
    remove_network_lock(toolchain, log, pids)
    wake_connections(pids)
    stop_again(log.parent)


def remove_network_lock(toolchain: Toolchain, log: Path, pids: Iterable[int]) -> bool:
    """Remove the nftables table of the CRIU that wrote `log` and dumped these processes; False when there is none."""
    found = _RUN_ID.search(_beginning(log))
    if found is None:
        return False
    wanted = f"CRIU-{found.group(1)}"
    removed = False
    for namespace in _network_namespaces(pids):
        tables = re.findall(r"table inet (CRIU-[0-9a-f-]+)", _nft(toolchain, namespace, "list", "tables"))
        for table in tables:
            if wanted.startswith(table):  # CRIU cuts the name at 26 characters
                _nft(toolchain, namespace, "delete", "table", "inet", table)
                removed = True
    return removed


def _beginning(log: Path) -> str:
    """Where the run id stands; a log has a line for each mapping of the workload, and may be larger than all memory."""
    try:
        with log.open("rb") as file:
            return file.read(_PART_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _network_namespaces(pids: Iterable[int]) -> list[Path]:
    found: dict[int, Path] = {}
    for process in ("self", *map(str, pids)):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            path = Path("/proc", process, "ns/net")
            found.setdefault(path.stat().st_ino, path)
    return list(found.values())


def _nft(toolchain: Toolchain, namespace: Path, *words: str) -> str:
    command = ["nsenter", f"--net={namespace}", "--", str(toolchain.nft), *words]
    said = subprocess.run(command, capture_output=True, check=False).stdout
    return said.decode(errors="replace")  # the workload's own tables may have any name
