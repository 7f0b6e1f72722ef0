"""What a killed CRIU leaves behind, and how it is undone.

CRIU that fails undoes everything by itself. CRIU that is *killed* in the middle of a dump leaves:

    ptrace          gone by itself: the kernel detaches the tasks of a tracer that dies
    injected code   goes by itself: it waits on a socket of CRIU's, sees it close, and returns to where the task was
                    (compel's `fini`); its few hundred KiB of memory stay mapped in the task
    cgroup          thawed by CRIU at the beginning of the dump; `dump` thaws it again
    network lock    an nftables table `CRIU-<run id>` that drops the packets of every established connection:
                    removed here, by the run id in CRIU's log
    TCP sockets     in repair mode: they would neither send nor receive. Switched back here

There are moments, a few milliseconds in all, at which a task is executing instructions that CRIU has written over
its own program or with registers that only CRIU knows: the task then dies of SIGTRAP or SIGSEGV. Nothing can be done
about that from outside; so `dump` never kills CRIU unless it hangs, and the workload continues from its previous
snapshot if it happens.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cedana_sched.snapshot.connections import wake_connections
from cedana_sched.snapshot.toolchain import Toolchain

_RUN_ID = re.compile(r"CRIU run id = ([0-9a-f-]+)")


def undo_killed_dump(toolchain: Toolchain, pids: Iterable[int], log: Path) -> None:
    """Give the network back to the processes of a tree whose dump was killed."""
    remove_network_lock(toolchain, log)
    wake_connections(pids)


def remove_network_lock(toolchain: Toolchain, log: Path) -> bool:
    """Remove the nftables table of the CRIU that wrote `log`; False when there is none."""
    found = _RUN_ID.search(log.read_text(errors="replace")) if log.exists() else None
    if found is None:
        return False
    table = f"CRIU-{found.group(1)}"
    if table not in _nft(toolchain, "list", "tables"):
        return False
    _nft(toolchain, "delete", "table", "inet", table)
    return True


def _nft(toolchain: Toolchain, *words: str) -> str:
    return subprocess.run([toolchain.nft, *words], capture_output=True, text=True, check=False).stdout
