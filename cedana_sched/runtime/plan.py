"""What is to become of a pod's containers, as the agent leaves it for the handler, and what the handler answers.

Both are files below the folder of one pod, `STATE/pods/UID`:

    plan.json                   written by the agent in one step: it is whole or absent
    results/NAME.json           written by the handler, one for each container that the plan continues, in one step too
    results/NAME.json.begun     the same, while a container is continued, and until its `start` publishes it
    results/NAME.json.lost      the same, of a container that has run and that containerd has lost: see `runtime.lost`

A container whose result is there is done with: when the kubelet starts it again later, it is runc's alone. Standard
library only: the handler runs on the host, where nothing else is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from cedana_sched.runtime import privilege_record
from cedana_sched.runtime.locks import PosixLock
from cedana_sched.runtime.privileges import Privileges
from cedana_sched.runtime.signs import STALL_SECONDS
from cedana_sched.runtime.whole import write_whole

VERSION = 1
"""Of both files. A handler that does not know a plan's version leaves the pod to runc."""

_BEGUN, _LOST = ".begun", ".lost"
"""What the name of a result ends with; the launcher has the first as well."""

RESTORE, COLD, FAIL, FORGO = "restore", "cold", "fail", "forgo"
"""The decisions; COLD and FAIL are also what becomes of a container that could not be continued. FORGO: the pod was
deleted on its way back, the handler creates none of its containers and removes one that it has just continued."""


class ContainerPlan(NamedTuple):
    """One container that continues."""

    images: str
    """Folder of CRIU's images, with runc's `descriptors.json`."""
    work: str
    """Folder for CRIU's log; made when it is missing."""
    layer: str | None = None
    """Tar of the files that it had changed in its image."""
    criu: tuple[str, ...] = ()
    """More options for CRIU, a line each, as in its configuration files."""
    locks: tuple[PosixLock, ...] = ()
    """POSIX locks that its processes take before their first instruction."""
    seconds: float = 110.0
    """It must be back within this time: less than what the kubelet gives a call of its runtime (120 s by default)."""
    stall_seconds: float = STALL_SECONDS
    """CRIU is ended, and tried once more, when it gives no sign of life for so long."""
    privileges: Privileges | None = None
    """What its processes had, and their container allowed; None where the snapshot does not say it."""


class Plan(NamedTuple):
    """What is to become of one pod."""

    decision: str
    """RESTORE, COLD, FAIL or FORGO."""
    why: str = ""
    fallback: str = COLD
    """COLD or FAIL: what becomes of a container that could not be continued."""
    containers: Mapping[str, ContainerPlan] = MappingProxyType({})
    skip: tuple[str, ...] = ()
    """Containers that had ended well when the snapshot was taken; they do nothing this time."""
    sandbox: str = ""
    """The pod's sandbox that it was made for: in another one all begins again. Empty: in any."""


class Result(NamedTuple):
    """What became of one container."""

    restored: bool
    why: str = ""
    cold: bool = False
    """Whether it was started from its beginning instead."""
    log: str | None = None
    """CRIU's log, where there is one."""
    tail: tuple[str, ...] = ()
    """What CRIU said last; without a log, where our own program failed."""
    id: str = ""
    """The runtime's name of the container that has come back or, before its `start`, of the one that is to."""


def pod_folder(state: str, uid: str) -> str:
    return f"{state}/pods/{uid}"


def plan_path(folder: str) -> str:
    return f"{folder}/plan.json"


def results_folder(folder: str) -> str:
    return f"{folder}/results"


def write_plan(folder: str, plan: Plan) -> None:
    """Lay a plan into a pod's folder, in place of the one that is there."""
    os.makedirs(results_folder(folder), mode=0o700, exist_ok=True)
    containers = {name: _written(container) for name, container in plan.containers.items()}
    _write(plan_path(folder), plan._asdict() | {"version": VERSION, "containers": containers})


def read_plan(folder: str) -> Plan | None:
    """The plan of a pod; None when there is none, or none that is understood.

    Raises:
        OSError: it cannot be read now; that says nothing about it.
    """
    content = _read(plan_path(folder))
    if content is None:
        return None
    try:
        if content["decision"] not in (RESTORE, COLD, FAIL, FORGO):
            return None
        containers = {str(name): _container(entry) for name, entry in content.get("containers", {}).items()}
        return Plan(
            decision=content["decision"],
            why=str(content.get("why", "")),
            fallback=FAIL if content.get("fallback") == FAIL else COLD,
            containers=containers,
            skip=tuple(map(str, content.get("skip", ()))),
            sandbox=str(content.get("sandbox", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def write_result(folder: str, container: str, result: Result) -> None:
    """Publish what became of a container to the agent."""
    _write_result(result_path(folder, container), result)


def read_result(folder: str, container: str) -> Result | None:
    """What became of a container; None as long as it is not decided, or not started."""
    return _read_result(result_path(folder, container))


def write_begun(folder: str, container: str, result: Result) -> None:
    """Keep the name of a container that is being continued, then the result that its start is to publish."""
    _write_result(result_path(folder, container) + _BEGUN, result)


def read_begun(folder: str, container: str) -> Result | None:
    """That of a container that has not been started yet, whether it has come back or not."""
    return _read_result(result_path(folder, container) + _BEGUN)


def forget_begun(folder: str, container: str) -> None:
    """It has not come back, or nothing of it is left."""
    with suppress(FileNotFoundError):
        os.unlink(result_path(folder, container) + _BEGUN)


def mark_lost(folder: str, container: str) -> None:
    """Have the agent lay anew what a container has changed; it must be dead."""
    path = result_path(folder, container)
    os.replace(path + _BEGUN, path + _LOST)


def lost_of(folder: str, plan: Plan) -> list[str]:
    """Containers of a plan that containerd has lost, and whose volumes are not laid anew yet."""
    return [name for name in plan.containers if os.path.exists(result_path(folder, name) + _LOST)]


def forget_lost(folder: str, container: str) -> None:
    """Let it come back once more."""
    with suppress(FileNotFoundError):
        os.unlink(result_path(folder, container) + _LOST)


def result_path(folder: str, container: str) -> str:
    return f"{results_folder(folder)}/{container}.json"


def _write_result(path: str, result: Result) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _write(path, result._asdict() | {"version": VERSION})


def _read_result(path: str) -> Result | None:
    content = _read(path)
    if content is None:
        return None
    return Result(
        restored=bool(content.get("restored")),
        why=str(content.get("why", "")),
        cold=bool(content.get("cold")),
        log=content.get("log"),
        tail=tuple(map(str, content.get("tail", ()))),
        id=str(content.get("id", "")),
    )


def _written(container: ContainerPlan) -> dict[str, Any]:
    privileges = container.privileges
    return container._asdict() | {"privileges": privilege_record.encode(privileges) if privileges else None}


def _container(entry: dict[str, Any]) -> ContainerPlan:
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
    """What is there; None where nothing is, or nothing that is understood.

    Raises:
        OSError: that cannot be told now.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("version") == VERSION else None


def _write(path: str, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content).encode())
