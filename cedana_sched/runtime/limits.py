"""Resource limits and OOM scores of restored processes, capped by those of their new container.

CRIU restores the limits that processes had, and their OOM score adjustments, but the new container may have lower
limits, or belong to a pod of higher priority. Excess is removed silently: the result is what the container's next
process would start with. Standard library only.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

_NAMES = (
    "CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS", "LOCKS", "SIGPENDING",
    "MSGQUEUE", "NICE", "RTPRIO", "RTTIME",
)  # fmt: skip
"""By number, as in asm-generic/resource.h; /proc/PID/limits has a line for each, in this order."""
_MAY_RAISE = "CAP_SYS_RESOURCE"
_UNLIMITED = "unlimited"
_COLUMN = 26  # fs/proc/base.c, proc_pid_limits: column width of names


def cap_limits(processes: Iterable[int], spec: Mapping[str, Any]) -> None:
    """Lower what restored processes have above their new container's `config.json`; skips those that have ended.

    A limit that the file omits is that of this process, as for any container of runc's. Processes that may raise limits
    keep theirs.

    Raises:
        OSError: a limit cannot be lowered.
    """
    process: Mapping[str, Any] = spec.get("process") or {}
    permitted = (process.get("capabilities") or {}).get("permitted") or ()
    if _MAY_RAISE in permitted:
        return
    most = _most(process)
    lowest = process.get("oomScoreAdj")
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):  # ended
            _lower(pid, most)
            if lowest is not None:
                _raise_score(pid, int(lowest))


def _most(process: Mapping[str, Any]) -> list[int]:
    """Return a container's hard limits, by number."""
    named = {str(one["type"]): int(one["hard"]) for one in process.get("rlimits") or ()}
    own = (resource.getrlimit(number)[1] for number in range(len(_NAMES)))
    return [_signed(named.get(f"RLIMIT_{name}", hard)) for name, hard in zip(_NAMES, own, strict=True)]


def _signed(limit: int) -> int:
    """Convert a limit: RLIM_INFINITY is the largest number in config.json, and -1 here."""
    return resource.RLIM_INFINITY if limit >= 1 << 63 else limit


def _lower(pid: int, most: list[int]) -> None:
    for number, (soft, hard) in enumerate(_limits(pid)):
        allowed = most[number]
        if _is_more(hard, allowed):
            resource.prlimit(pid, number, (allowed if _is_more(soft, allowed) else soft, allowed))


def _is_more(limit: int, allowed: int) -> bool:
    return allowed != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > allowed)


def _limits(pid: int) -> list[tuple[int, int]]:
    """Return soft and hard limits, by number. Reading by prlimit(2) requires a privilege that /proc does not.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    with open(f"/proc/{pid}/limits", encoding="ascii") as file:
        lines = file.read().splitlines()[1 : len(_NAMES) + 1]
    return [(_number(soft), _number(hard)) for soft, hard, *_ in (line[_COLUMN:].split() for line in lines)]


def _number(word: str) -> int:
    return resource.RLIM_INFINITY if word == _UNLIMITED else int(word)


def _raise_score(pid: int, lowest: int) -> None:
    """Raise the OOM score adjustment to that of the container.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    with open(f"/proc/{pid}/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < lowest:
            file.seek(0)
            file.write(str(lowest))
