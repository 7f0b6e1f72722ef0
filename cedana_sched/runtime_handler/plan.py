"""The agent's plan for a pod's containers, and the handler's results.

Both are files in the folder of one pod, `STATE/pods/UID`:

    plan.json                   written by the agent, atomically results/NAME.json           written by the handler, one
    per container that the plan restores, atomically results/NAME.json.begun     the same, while a container is being
    restored, and until its `start` publishes it results/NAME.json.lost      the same, of a container that has run and
    containerd has lost: see `containerd_lost_containers`

A container with a result is done: if the kubelet starts it again later, runc handles it alone. Standard library only:
the handler runs on the host, without other packages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from cedana_sched.runtime_handler import privilege_record
from cedana_sched.runtime_handler.atomic_write import write_atomically
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.posix_lock_restore import PosixLock
from cedana_sched.runtime_handler.privilege_comparison import Privileges
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS

VERSION = 1
"""Of both files. A handler that does not support a plan's version leaves the pod to runc."""

_BEGUN, _LOST = ".begun", ".lost"
"""Suffixes of a result's name; the launcher has the first as well."""

RESTORE, COLD, FAIL, FORGO = "restore", "cold", "fail", "forgo"
"""The decisions; COLD and FAIL are also the fallbacks for a container that could not be restored. FORGO: the pod was
deleted during its restore; the handler creates none of its containers and removes one that was just restored."""


class ContainerPlan(NamedTuple):
    """One container to restore."""

    images: str
    """Folder of CRIU's images, with runc's `descriptors.json`."""
    work: str
    """Folder for CRIU's log; created if missing."""
    layer: str | None = None
    """Tar of the container's changes to its image."""
    criu: tuple[str, ...] = ()
    """More options for CRIU, one per line, as in its configuration files."""
    locks: tuple[PosixLock, ...] = ()
    """POSIX locks that its processes acquire before their first instruction."""
    seconds: float = 110.0
    """Timeout of the restore: less than the kubelet's timeout of a runtime call (120 s by default)."""
    stall_seconds: float = STALL_SECONDS
    """Without progress for so long, CRIU is ended, and retried once."""
    privileges: Privileges | None = None
    """What its processes had, and their container allowed; None if the snapshot lacks the record."""


class Plan(NamedTuple):
    """The plan for one pod."""

    decision: str
    """RESTORE, COLD, FAIL or FORGO."""
    why: str = ""
    fallback: str = COLD
    """COLD or FAIL: the fallback for a container that could not be restored."""
    containers: Mapping[str, ContainerPlan] = MappingProxyType({})
    skip: tuple[str, ...] = ()
    """Containers that had succeeded before the snapshot; they do nothing this time."""
    sandbox: str = ""
    """The pod's sandbox for which the plan was made: another one needs a new plan. Empty: any."""
    on_change: OnChange = OnChange.NONE
    """What follows if files outside the snapshot have changed since."""

    def may_start_cold(self, *, files_changed: bool) -> bool:
        """Return whether a container that was not restored starts cold, unless it would be beside restored ones."""
        if files_changed:
            return self.on_change is OnChange.COLD
        return self.fallback == COLD


class ContainerResult(NamedTuple):
    """The result of one container."""

    restored: bool
    why: str = ""
    cold: bool = False
    """Whether it was started cold instead."""
    log: str | None = None
    """CRIU's log, if any."""
    tail: tuple[str, ...] = ()
    """CRIU's last lines; without a log, the traceback of our own program."""
    id: str = ""
    """The runtime's id of the restored container or, before its `start`, of the one being restored."""
    notes: tuple[str, ...] = ()
    """Files outside the snapshot that have changed since, and what was done about them."""
    files_changed: bool = False
    """Whether it was not restored because of such a file, so that the policy for these decides."""


def pod_folder(state: str, uid: str) -> str:
    return f"{state}/pods/{uid}"


def plan_path(folder: str) -> str:
    return f"{folder}/plan.json"


def results_folder(folder: str) -> str:
    return f"{folder}/results"


def write_plan(folder: str, plan: Plan) -> None:
    """Write a plan into a pod's folder, replacing the existing one."""
    os.makedirs(results_folder(folder), mode=0o700, exist_ok=True)
    containers = {name: _encode_container(container) for name, container in plan.containers.items()}
    _write(plan_path(folder), plan._asdict() | {"version": VERSION, "containers": containers})


def read_plan(folder: str) -> Plan | None:
    """Read the plan of a pod; None if there is none, or its format is unknown.

    Raises:
        OSError: the plan cannot be read now; it may exist all the same.
    """
    content = _read(plan_path(folder))
    if content is None:
        return None
    try:
        if content["decision"] not in (RESTORE, COLD, FAIL, FORGO):
            return None
        containers = {str(name): _decode_container(entry) for name, entry in content.get("containers", {}).items()}
        return Plan(
            decision=content["decision"],
            why=str(content.get("why", "")),
            fallback=FAIL if content.get("fallback") == FAIL else COLD,
            containers=containers,
            skip=tuple(map(str, content.get("skip", ()))),
            sandbox=str(content.get("sandbox", "")),
            on_change=_decode_on_change(content.get("on_change")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def write_result(folder: str, container: str, result: ContainerResult) -> None:
    """Publish a container's result to the agent."""
    _write_result(result_path(folder, container), result)


def read_result(folder: str, container: str) -> ContainerResult | None:
    """Read a container's result; None while it is not decided, or not started."""
    return _read_result(result_path(folder, container))


def write_create_record(folder: str, container: str, result: ContainerResult) -> None:
    """Record the id of a container that is being restored, then the result that its `start` is to publish."""
    _write_result(result_path(folder, container) + _BEGUN, result)


def read_create_record(folder: str, container: str) -> ContainerResult | None:
    """Read the record of a container that has not been started yet, restored or not."""
    return _read_result(result_path(folder, container) + _BEGUN)


def remove_create_record(folder: str, container: str) -> None:
    """Delete that record: the container was not restored, or is removed."""
    with suppress(FileNotFoundError):
        os.unlink(result_path(folder, container) + _BEGUN)


def mark_lost(folder: str, container: str) -> None:
    """Request that the agent unpack a container's changes again; the container must be dead."""
    path = result_path(folder, container)
    os.replace(path + _BEGUN, path + _LOST)


def lost_containers_of(folder: str, plan: Plan) -> list[str]:
    """Return the plan's containers that containerd has lost, and whose volumes are not unpacked again yet."""
    return [name for name in plan.containers if os.path.exists(result_path(folder, name) + _LOST)]


def unmark_lost(folder: str, container: str) -> None:
    """Permit another restore."""
    with suppress(FileNotFoundError):
        os.unlink(result_path(folder, container) + _LOST)


def result_path(folder: str, container: str) -> str:
    return f"{results_folder(folder)}/{container}.json"


def _write_result(path: str, result: ContainerResult) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _write(path, result._asdict() | {"version": VERSION})


def _read_result(path: str) -> ContainerResult | None:
    content = _read(path)
    if content is None:
        return None
    return ContainerResult(
        restored=bool(content.get("restored")),
        why=str(content.get("why", "")),
        cold=bool(content.get("cold")),
        log=content.get("log"),
        tail=tuple(map(str, content.get("tail", ()))),
        id=str(content.get("id", "")),
        notes=tuple(map(str, content.get("notes", ()))),
        files_changed=bool(content.get("files_changed")),
    )


def _decode_on_change(value: object) -> OnChange:
    """Return what follows if files have changed; an unknown value touches no file."""
    return next((one for one in OnChange if one == value), OnChange.NONE)


def _encode_container(container: ContainerPlan) -> dict[str, Any]:
    privileges = container.privileges
    return container._asdict() | {"privileges": privilege_record.encode(privileges) if privileges else None}


def _decode_container(entry: dict[str, Any]) -> ContainerPlan:
    privileges = entry.get("privileges")
    return ContainerPlan(
        images=str(entry["images"]),
        work=str(entry["work"]),
        layer=entry.get("layer"),
        criu=tuple(map(str, entry.get("criu", ()))),
        locks=tuple(PosixLock(*map(int, lock)) for lock in entry.get("locks", ())),
        seconds=float(entry.get("seconds", 110.0)),
        stall_seconds=float(entry.get("stall_seconds", STALL_SECONDS)),
        privileges=None if privileges is None else privilege_record.decode(privileges),
    )


def _read(path: str) -> dict[str, Any] | None:
    """Read a JSON file; None if it is missing or its format is unknown.

    Raises:
        OSError: the file cannot be read now.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("version") == VERSION else None


def _write(path: str, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content).encode())
