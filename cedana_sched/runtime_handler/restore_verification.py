"""Verification of restored processes before their first instruction, because CRIU restores without any checks.

CRIU also restores the resource limits that processes had, and their OOM score adjustments, but the new container may
have lower limits, or belong to a pod of higher priority. Excess is removed silently: the result is what the container's
next process would start with. The processes are held meanwhile (`runtime_handler.held_processes`). Standard library
only.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from cedana_sched.runtime_handler.held_processes import HeldProcesses, RestoredProcessesError
from cedana_sched.runtime_handler.oci_confinement import confinement_of
from cedana_sched.runtime_handler.plan import ContainerPlan
from cedana_sched.runtime_handler.privilege_comparison import Privileges, restore_objection_to
from cedana_sched.runtime_handler.process_credentials import credentials_of
from cedana_sched.runtime_handler.volume_file_comparison import objection_to_files, read_record

_LIMIT_NAMES = (
    "CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS", "LOCKS", "SIGPENDING",
    "MSGQUEUE", "NICE", "RTPRIO", "RTTIME",
)  # fmt: skip
"""By number, as in asm-generic/resource.h; /proc/PID/limits has a line for each, in this order."""
_COLUMN = 26  # fs/proc/base.c, proc_pid_limits: column width of names


def check_before_first_instruction(held: HeldProcesses, plan: ContainerPlan, spec: dict[str, Any]) -> None:
    """Compare restored processes with their record and their new container; lower their limits to the container's.

    Args:
        held: all processes of the container.
        plan: has the record of the snapshot.
        spec: the config.json of the new container.

    Raises:
        RestoredProcessesError: the processes must not run.
        OSError: some of their state cannot be read.
    """
    try:
        may = confinement_of(spec)
        files = read_record(plan.images)
        have = credentials_of(held.processes, may)
    except ValueError as error:
        raise RestoredProcessesError(str(error)) from error
    if (why := restore_objection_to(Privileges(may, have), may)) is not None:
        raise RestoredProcessesError(why)
    if (why := objection_to_files(files, held.by_namespace_pid(), may.groups | {may.group})) is not None:
        raise RestoredProcessesError(why)
    cap_limits(held.processes, spec)


def cap_limits(processes: Iterable[int], spec: Mapping[str, Any]) -> None:
    """Lower what restored processes have above their new container's `config.json`; skips those that have ended.

    A limit that the file omits is that of this process, as for any container of runc's. Processes that may raise limits
    keep theirs.

    Raises:
        OSError: a limit cannot be lowered.
    """
    process: Mapping[str, Any] = spec.get("process") or {}
    permitted = (process.get("capabilities") or {}).get("permitted") or ()
    if "CAP_SYS_RESOURCE" in permitted:
        return
    most = _container_hard_limits(process)
    lowest = process.get("oomScoreAdj")
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):  # ended
            _lower_resource_limits(pid, most)
            if lowest is not None:
                _raise_score(pid, int(lowest))


def _container_hard_limits(process: Mapping[str, Any]) -> list[int]:
    """Return a container's hard limits, by number."""
    named = {str(one["type"]): int(one["hard"]) for one in process.get("rlimits") or ()}
    own = (resource.getrlimit(number)[1] for number in range(len(_LIMIT_NAMES)))
    return [_convert_unlimited(named.get(f"RLIMIT_{name}", hard)) for name, hard in zip(_LIMIT_NAMES, own, strict=True)]


def _convert_unlimited(limit: int) -> int:
    """Convert a limit: RLIM_INFINITY is the largest number in config.json, and -1 here."""
    return resource.RLIM_INFINITY if limit >= 1 << 63 else limit


def _lower_resource_limits(pid: int, most: list[int]) -> None:
    for number, (soft, hard) in enumerate(_resource_limits_of(pid)):
        allowed = most[number]
        if _is_limit_above(hard, allowed):
            resource.prlimit(pid, number, (allowed if _is_limit_above(soft, allowed) else soft, allowed))


def _is_limit_above(limit: int, allowed: int) -> bool:
    return allowed != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > allowed)


def _resource_limits_of(pid: int) -> list[tuple[int, int]]:
    """Return soft and hard limits, by number. Reading by prlimit(2) requires a privilege that /proc does not.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    with open(f"/proc/{pid}/limits", encoding="ascii") as file:
        lines = file.read().splitlines()[1 : len(_LIMIT_NAMES) + 1]
    return [(_parse_limit(soft), _parse_limit(hard)) for soft, hard, *_ in (line[_COLUMN:].split() for line in lines)]


def _parse_limit(word: str) -> int:
    return resource.RLIM_INFINITY if word == "unlimited" else int(word)


def _raise_score(pid: int, lowest: int) -> None:
    """Raise the OOM score adjustment to that of the container.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    with open(f"/proc/{pid}/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < lowest:
            file.seek(0)
            file.write(str(lowest))
