"""Takes a process out of the agent's container, so that the end of the container is not its own.

When the first process of a container dies, everything in its control groups is killed with it: a capture, and the CRIU
that is inside a workload at that moment. Killed there, CRIU lets the workload run on, sometimes with broken connections
(see `snapshot.aftermath`). So captures are moved into the control groups of the host's process 1: nothing of the
agent's is there, nor a limit of its memory.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE

import structlog

log = structlog.get_logger(__name__)

_NOT_MOVED = "capture not moved out of the container: it will be killed if the agent is"

_MOVE = """
set -e
while IFS=: read -r _ controllers path; do
    case $controllers in
        '') folder=/sys/fs/cgroup; [ -e $folder/cgroup.controllers ] || folder=/sys/fs/cgroup/unified ;;
        *) folder=/sys/fs/cgroup/${controllers#name=} ;;
    esac
    [ ! -d "$folder" ] || echo "$1" >"$folder$path/cgroup.procs"
done <"/proc/$2/cgroup"
"""


async def shelter(pid: int, first: int = 1) -> bool:
    """Move a process of ours into the control groups of the host's process 1; False, and a log line, if refused.

    It is done from inside that process's namespaces: a control group outside of one's own cgroup namespace takes
    nothing from there (cgroups(7), `nsdelegate`).
    """
    as_the_node = ("nsenter", f"--mount=/proc/{first}/ns/mnt", f"--cgroup=/proc/{first}/ns/cgroup", "--")
    move = ("sh", "-c", _MOVE, "shelter", str(pid), str(first))
    try:
        process = await asyncio.create_subprocess_exec(*as_the_node, *move, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
        _, said = await process.communicate()
    except OSError as error:
        log.warning(_NOT_MOVED, why=str(error))
        return False
    if process.returncode:
        log.warning(_NOT_MOVED, why=said.decode(errors="replace").strip())
    return process.returncode == 0
