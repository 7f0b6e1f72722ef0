"""Moves captures out of the agent's container into control groups of their own, so that they outlive the agent.

When the first process of a container dies, everything in its control groups is killed: a capture, and the CRIU that is
inside a workload at that moment. When CRIU is killed there, the workload runs on, sometimes with broken connections
(see `snapshot.killed_dump_cleanup`). So captures are moved into the control groups of the host's process 1: these
contain nothing of the agent, and no limit of its memory. In the memory hierarchy each capture gets a group of its own,
with a limit.

At that limit the OOM killer kills the capture process first, by its `oom_score_adj`: a CRIU whose stream is broken
rolls back its dump, and the workload runs on unchanged. CRIU is the last choice.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from pathlib import Path

import structlog

from cedana_sched.agent.dump_budget import PAGES_SHARE
from cedana_sched.cluster.node.capture_cgroups import CaptureCgroups, memory_of_this_machine
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot.cgroups import Cgroup, CgroupError, Limits

log = structlog.get_logger(__name__)

VALUE = "agent.dumps.memoryBytesEach"
"""The chart's value that sets the limit."""

_NOT_MOVED = "capture not moved out of the container: it will be killed if the agent is"
_NOT_LIMITED = "capture without a limit of memory"
_TRIES = 3

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
_JOIN = 'echo "$1" >"$2/cgroup.procs"'


class HostCgroupDetacher:
    """Detaches the captures of a node's agent; see `agent.capture_processes.CaptureDetacher`.

    Args:
        limit_bytes: memory limit of the processes of one capture, in addition to their cost per page of the workload.
        host_root: where the host's files are mounted.
        first: the host's first process.
    """

    def __init__(self, limit_bytes: int, host_root: Path = Path("/proc/1/root"), first: int = 1) -> None:
        self._limit_bytes = limit_bytes
        self._host_root = host_root
        self._first = first
        self._groups: CaptureCgroups | None = None
        self.why_unlimited: str | None = "not checked yet"
        """Why captures have no limit; None: they have one."""
        self._of: dict[int, tuple[Cgroup, int]] = {}
        """By PID: the capture's group and the group's limit; 0 until a limit is set."""

    async def prepare_groups(self) -> None:
        """Locate the parent of the groups, and remove groups that captures of earlier agents have left."""
        try:
            self._groups = await asyncio.to_thread(self._find_capture_groups)
        except (CgroupError, OSError) as error:
            self.why_unlimited = str(error)
            log.warning("dumps have no limit of memory on this node", reason=self.why_unlimited)
            return
        self.why_unlimited = None
        await asyncio.to_thread(self._groups.remove_abandoned_groups)

    async def detach(self, pid: int) -> bool:
        """See `CaptureDetacher`."""
        if not await move_to_host_cgroups(pid, self._first):
            return False
        if self._groups is not None:
            group = self._groups.new_capture_cgroup(pid)
            if problem := await self._create_and_join_cgroup(group, pid):
                log.warning(_NOT_LIMITED, reason=problem)
            else:
                self._of[pid] = (group, 0)
        return True

    async def limit_memory(self, pid: int, workload_bytes: int) -> None:
        """See `CaptureDetacher`."""
        if pid not in self._of:
            return
        group, _ = self._of[pid]
        # shared pages count for each process that maps them, and are stored once
        limit = self._limit_bytes + int(min(workload_bytes, memory_of_this_machine()) * PAGES_SHARE)
        if problems := await asyncio.to_thread(group.apply_limits, Limits(memory_bytes=limit)):
            log.warning(_NOT_LIMITED, reason="; ".join(problems))
        else:
            self._of[pid] = (group, limit)

    async def clean_up_after(self, pid: int) -> str | None:
        """See `CaptureDetacher`."""
        group, limit = self._of.pop(pid, (None, 0))
        if group is None or self._groups is None:
            return None
        kills = await asyncio.to_thread(group.oom_kills)
        try:
            await asyncio.to_thread(group.remove)
            await asyncio.to_thread(self._groups.remove_abandoned_groups)
        except (CgroupError, OSError) as error:
            log.warning("control group of a capture not removed", error=str(error))
        return f"the dump ran out of memory at its limit of {limit >> 20} MiB: raise {VALUE}" if kills else None

    def _find_capture_groups(self) -> CaptureCgroups:
        """Locate the control groups of the host's first process.

        Raises:
            CgroupError: the host has no memory controller.
            FileNotFoundError, ProcessLookupError: the process does not exist.
        """
        mountinfo = Path(f"/proc/{self._first}/mountinfo").read_text()
        return CaptureCgroups.find_on_host(self._host_root, mountinfo.splitlines())

    async def _create_and_join_cgroup(self, group: Cgroup, pid: int) -> str | None:
        """Create a group and move a process into it; return why that failed, or None."""
        place = group.unique_directories[0]
        problem: str | None = None
        for _ in range(_TRIES):  # another agent on this machine may remove the group before the move
            try:
                await asyncio.to_thread(group.create)
                await asyncio.to_thread(prefer_as_oom_victim, Path(f"/proc/{pid}/oom_score_adj"))
            except (CedanaSchedError, OSError) as error:
                return str(error)
            problem = await _run_on_host(self._first, _JOIN, str(pid), self._host_path(place))
            if problem is None or place.exists():
                break
        return problem

    def _host_path(self, path: Path) -> str:
        return str(Path("/") / path.relative_to(self._host_root))


def prefer_as_oom_victim(score: Path) -> None:
    """Make a process a likelier OOM victim than its CRIU.

    The `oom_score_adj` that the process inherits from the agent is as low as CRIU's.
    """
    with suppress(FileNotFoundError, ProcessLookupError):  # it has exited
        if int(score.read_text()) < 0:
            score.write_text("0")


async def move_to_host_cgroups(pid: int, first: int = 1) -> bool:
    """Move a process of ours into the control groups of the host's process 1; on failure log and return False."""
    problem = await _run_on_host(first, _MOVE, str(pid), str(first))
    if problem is not None:
        log.warning(_NOT_MOVED, reason=problem)
    return problem is None


async def _run_on_host(first: int, script: str, *words: str) -> str | None:
    """Run a script in the namespaces of the host's process 1; return why it failed, or None.

    From inside a cgroup namespace no process can be moved into a control group outside of it (cgroups(7),
    `nsdelegate`).
    """
    enter = ("nsenter", f"--mount=/proc/{first}/ns/mnt", f"--cgroup=/proc/{first}/ns/cgroup", "--")
    command = (*enter, "sh", "-c", script, "shelter", *words)
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
        _, output = await process.communicate()
    except OSError as error:
        return str(error)
    return output.decode(errors="replace").strip() if process.returncode else None
