"""Credentials of a container's processes from /proc, which CRIU records and restores.

Read while the processes are frozen: a running process may gain more a moment later. Every thread is read, because each
has its own credentials. Ids are translated into the container's user namespace, as in CRIU's images. Standard library
only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from cedana_sched.runtime_handler.capability_names import capability_names_of_mask
from cedana_sched.runtime_handler.privilege_comparison import Capabilities, Confinement, Credentials, Map

MOST_IDS = 4096

_SETS = {
    "bounding": "CapBnd",
    "effective": "CapEff",
    "inheritable": "CapInh",
    "permitted": "CapPrm",
    "ambient": "CapAmb",
}
"""Lines of /proc/PID/status, by the names of `Capabilities` (proc_pid_status(5))."""


def credentials_of(pids: Iterable[int], container: Confinement, proc: str | os.PathLike[str] = "/proc") -> Credentials:
    """Return the union over all threads of these processes; those that have ended are skipped.

    Raises:
        OSError: a thread cannot be read.
        ValueError: more users and groups than legitimate; each thread may have 65,536 of its own.
    """
    found = Credentials()
    for pid in pids:
        for folder in _thread_folders_of(os.path.join(proc, str(pid))):
            if (one := _credentials_of_thread(folder, container)) is None:
                continue
            found = _merge_credentials(found, one)
            if (number := len(found.users) + len(found.groups) + len(found.supplementary_groups)) > MOST_IDS:
                raise ValueError(f"its processes have {number} users and groups; {MOST_IDS} can be recorded")
    return found


def _merge_credentials(one: Credentials, other: Credentials) -> Credentials:
    return Credentials(
        one.users | other.users,
        one.groups | other.groups,
        one.supplementary_groups | other.supplementary_groups,
        Capabilities(*(mine | yours for mine, yours in zip(one.capabilities, other.capabilities, strict=True))),
        one.no_new_privileges and other.no_new_privileges,
        one.filtered and other.filtered,
        one.labels | other.labels,
    )


def _thread_folders_of(process: str) -> Iterator[str]:
    """Yield the folders of a process's threads; none if it has ended.

    Raises:
        OSError: the threads cannot be listed.
    """
    try:
        yield from [f"{process}/task/{thread}" for thread in os.listdir(f"{process}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return


def _credentials_of_thread(folder: str, container: Confinement) -> Credentials | None:
    """Return a thread's credentials; None if it has ended, or is a zombie.

    Raises:
        OSError: the thread cannot be read.
    """
    try:
        status = dict(_status_fields(_read_file(f"{folder}/status")))
        if status["State"][0] in "ZX":
            return None
        label = _security_label(f"{folder}/attr/current")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Credentials(
        users=_ids_in_container(status["Uid"], container.user_map),
        groups=_ids_in_container(status["Gid"], container.group_map),
        supplementary_groups=_ids_in_container(status["Groups"], container.group_map),
        capabilities=Capabilities(
            **{name: capability_names_of_mask(int(status[line], 16)) for name, line in _SETS.items()}
        ),
        no_new_privileges=status["NoNewPrivs"] == "1",
        filtered=status.get("Seccomp", "0") != "0",  # optional in the kernel
        labels=frozenset({label}),
    )


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _status_fields(status: bytes) -> Iterator[tuple[str, str]]:
    """Yield the lines of a status file; a process name need not be valid text."""
    for line in status.decode(errors="replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()


def _security_label(file: str) -> str:
    """Return the AppArmor label, without its mode, or the SELinux one; empty if there is none.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    try:
        label = _read_file(file).decode(errors="replace").strip("\0\n")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # no such module is active
            raise
        return ""
    label = label.rsplit(" (", 1)[0]
    return "" if label == "unconfined" else label


def _ids_in_container(ids: str, mapped: Map) -> frozenset[int]:
    return frozenset(_id_in_container(int(number), mapped) for number in ids.split())


def _id_in_container(number: int, mapped: Map) -> int:
    """Translate an id; an unmapped one is unchanged: no user in the container has that id."""
    for inside, outside, count in mapped:
        if outside <= number < outside + count:
            return inside + number - outside
    return number
