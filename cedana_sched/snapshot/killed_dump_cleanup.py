"""Cleanup after a killed CRIU.

A failing CRIU undoes everything itself. A CRIU that is *killed* in the middle of a dump leaves:

    ptrace          ends by itself: the kernel detaches the tasks of a dead tracer, and they run on at once
    injected code   ends by itself: it waits on a socket of CRIU's, which closes, and returns to where the task was
                    (compel's `fini`); its few hundred KiB of memory stay mapped in the task
    helpers         CRIU's own processes, some of them stopped: `dump` kills its whole process group
    cgroup          thawed by CRIU at the beginning of the dump; `dump` thaws it again in any case
    network lock    an nftables table `CRIU-<run id>` that drops the packets of the tree's connections, in the tree's
                    network namespace: removed here
    TCP sockets     in repair mode, where recv(2) fails with EPERM: reset here
    stops           removed from the signal queues of stopped processes: restored here (see `stopped`)

Two dangers remain, for kills from outside (the out-of-memory killer, an admin):

* A task that is executing instructions which CRIU has written over its own program, or with registers that only CRIU
  has recorded, dies of SIGTRAP or SIGSEGV. Measured: 3 of 120 kills at random moments of the dump of a program with
  threads, all while code was being injected (CRIU's log ends with `Dump rseq`).
* A process that waits in recv(2) of a TCP connection runs before the repair mode is reset, and gets EPERM. Measured: a
  program that only exchanges messages died in 7 of 40 kills. When `dump` itself has to kill CRIU, it freezes the cgroup
  first, so that nothing runs until everything is undone; the only defence against other kills is to make CRIU the last
  choice of the out-of-memory killer, which `dump` attempts.

A workload that dies this way is restored from its previous snapshot.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.stopped import stop_again
from cedana_sched.snapshot.tcp_repair import leave_repair_mode

_LAST_WORD = re.compile(rb"Dumping (FAILED|finished successfully)")
"""Last line of CRIU's log, written when everything is undone (criu/cr-dump.c, `cr_dump_finish`)."""
_PART_BYTES = 4096
_RUN_ID = re.compile(r"CRIU run id = ([0-9a-f-]+)")


def is_killed_criu_log(log: Path) -> bool:
    """Return whether the CRIU of this log, which has ended, was killed: the log lacks its last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _PART_BYTES))
            return not _LAST_WORD.search(file.read())
    except FileNotFoundError:
        return False


def undo_killed_dump(toolchain: Toolchain, pids: Iterable[int], log: Path) -> None:
    """Restore network access for the processes of a tree whose dump was killed."""
    pids = list(pids)
    remove_network_lock(toolchain, log, pids)
    leave_repair_mode(pids)
    stop_again(log.parent)


def remove_network_lock(toolchain: Toolchain, log: Path, pids: Iterable[int]) -> bool:
    """Remove the nftables table of the CRIU that wrote `log` and dumped these processes; False if there is none."""
    found = _RUN_ID.search(_read_log_start(log))
    if found is None:
        return False
    wanted = f"CRIU-{found.group(1)}"
    removed = False
    for namespace in _network_namespaces(pids):
        tables = re.findall(r"table inet (CRIU-[0-9a-f-]+)", _run_nft(toolchain, namespace, "list", "tables"))
        for table in tables:
            if wanted.startswith(table):  # CRIU truncates the name at 26 characters
                _run_nft(toolchain, namespace, "delete", "table", "inet", table)
                removed = True
    return removed


def _read_log_start(log: Path) -> str:
    """Read the part with the run id; a log has a line per mapping of the workload, and may exceed all memory."""
    try:
        with log.open("rb") as file:
            return file.read(_PART_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _network_namespaces(pids: Iterable[int]) -> list[Path]:
    found: dict[int, Path] = {}
    for process in ("self", *map(str, pids)):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended
            path = Path("/proc", process, "ns/net")
            found.setdefault(path.stat().st_ino, path)
    return list(found.values())


def _run_nft(toolchain: Toolchain, namespace: Path, *words: str) -> str:
    command = ["nsenter", f"--net={namespace}", "--", str(toolchain.nft), *words]
    output = subprocess.run(command, capture_output=True, check=False).stdout
    return output.decode(errors="replace")  # the workload's own tables may have any name
