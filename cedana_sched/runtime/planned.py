"""`create` of a container whose pod has a plan."""

from __future__ import annotations

import json
import os
import time
import traceback
from typing import Any

from cedana_sched.runtime.call import CreateCall
from cedana_sched.runtime.continuing import continue_container, mark_restored, remove_container, write_specification
from cedana_sched.runtime.finished import replace_process
from cedana_sched.runtime.handler import FAILED, PASS
from cedana_sched.runtime.kernel import die_with_parent
from cedana_sched.runtime.lost import WHY, end_lost, give_up, turn, wait_until_laid
from cedana_sched.runtime.plan import (
    COLD,
    FAIL,
    FORGO,
    RESTORE,
    Plan,
    Result,
    forget_begun,
    lost_of,
    read_plan,
    read_result,
    result_path,
    write_begun,
    write_result,
)

_CONTAINER_NAME = "io.kubernetes.cri.container-name"
_CONTAINER_TYPE = "io.kubernetes.cri.container-type"
_SANDBOX = "io.kubernetes.cri.sandbox-id"
_RESTORE_CONTAINER = "cedana-restore"
"""`model.objects.names.RESTORE_CONTAINER`, which is not installed here: it decides nothing, it waits."""


def create(arguments: list[str], runc: str, folder: str, finished_program: str) -> int:
    """See `handler.handle`. Whatever goes wrong here, a container that may start from its beginning does."""
    plan = read_plan(folder)
    if plan is None or (plan.decision == COLD and not plan.sandbox):
        return PASS
    try:
        call = CreateCall(arguments)
        with open(f"{call.bundle}/config.json", encoding="utf-8") as file:
            spec = json.load(file)
    except (OSError, ValueError):
        return PASS
    annotations = spec.get("annotations", {})
    name = annotations.get(_CONTAINER_NAME)
    if annotations.get(_CONTAINER_TYPE) != "container" or not name or name == _RESTORE_CONTAINER:
        return PASS
    status = _status_without(plan, name, call, spec, folder, finished_program)
    if status is not None:
        return status
    deadline = time.monotonic() + plan.containers[name].seconds
    return _continue(name, deadline, call, spec, runc, folder, finished_program)


def _status_without(
    plan: Plan, name: str, call: CreateCall, spec: dict[str, Any], folder: str, finished_program: str
) -> int | None:
    """The status of a container that is not to be continued; None for one that is."""
    if plan.sandbox and spec["annotations"].get(_SANDBOX, plan.sandbox) != plan.sandbox:
        _say(call, "the pod's sandbox was made anew, and what becomes of the pod in it is not decided yet")
        return FAILED
    if plan.decision == COLD:
        return PASS
    if name in plan.skip:
        replace_process(spec, finished_program)
        write_specification(call.bundle, spec)
        return PASS
    if name not in plan.containers:
        return PASS
    if (known := read_result(folder, name)) is not None:
        return _again(known, call)
    if plan.decision in (FAIL, FORGO):
        _say(call, plan.why)
        return FAILED
    return None


def _again(known: Result, call: CreateCall) -> int:
    """The kubelet starts a container that had its turn: as any other, unless it must not begin anew."""
    if known.restored or known.cold:
        return PASS
    _say(call, known.why)
    return FAILED


def _continue(
    name: str, deadline: float, call: CreateCall, spec: dict[str, Any], runc: str, folder: str, finished_program: str
) -> int:
    """Continue a container once nothing of the pod that containerd has lost is left, and its volumes are laid."""
    die_with_parent(os.getppid())  # a shim that gives up kills its runtime: nothing of it may come alive later
    with turn(folder):
        plan = read_plan(folder) or Plan(COLD)
        if plan.decision == RESTORE and name in plan.containers:
            end_lost(plan, runc, call, folder)
            if not wait_until_laid(folder, lambda: _may_go_on(folder), plan.containers[name].seconds / 2):
                _say(call, f"{WHY}, and the agent has not laid the pod's volumes anew in time")
                return FAILED
            plan = read_plan(folder) or Plan(COLD)
        if lost_of(folder, plan):
            give_up(plan, folder, beside=_others_continued(plan, name, folder))
        status = _status_without(plan, name, call, spec, folder, finished_program)
        if status is not None:
            return status
        return _restore(plan, name, deadline, call, spec, runc, folder)


def _may_go_on(folder: str) -> bool:
    """Whether nothing is lost, or whether what is lost does not come back any more."""
    plan = read_plan(folder)
    if plan is None or plan.decision != RESTORE or not lost_of(folder, plan):
        return True
    return any(read_result(folder, name) is not None for name in plan.containers)


def _restore(
    plan: Plan, name: str, deadline: float, call: CreateCall, spec: dict[str, Any], runc: str, folder: str
) -> int:
    may_begin_anew = plan.fallback == COLD and not _others_continued(plan, name, folder)
    write_begun(folder, name, Result(restored=False, id=call.id))
    try:
        container = plan.containers[name]
        result = continue_container(runc, call, container, spec, deadline=deadline, clean_after_failure=may_begin_anew)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not keep a container from starting
        trace = traceback.format_exc().splitlines()
        result = Result(restored=False, why=f"the runtime handler failed: {error!r}", tail=tuple(trace[-20:]))
        if may_begin_anew:
            remove_container(runc, call)
    if result.restored:
        write_begun(folder, name, result)
        if (now := read_plan(folder)) is not None and now.decision == FORGO:
            remove_container(runc, call)
            _say(call, now.why)
            return FAILED
        mark_restored(call, result_path(folder, name))
        return 0
    write_result(folder, name, result._replace(cold=may_begin_anew))
    forget_begun(folder, name)
    if may_begin_anew:
        return PASS
    _say(call, result.why)
    return FAILED


def _others_continued(plan: Plan, name: str, folder: str) -> bool:
    """Whether another container of the pod came back: beside it, this one must not begin anew."""
    results = (read_result(folder, other) for other in plan.containers if other != name)
    return any(result is not None and result.restored for result in results)


def _say(call: CreateCall, why: str) -> None:
    """Write the error that the kubelet is to show where runc would write its own."""
    if call.log is None:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"level": "error", "msg": f"cedana: not continued from its snapshot: {why}", "time": now}
    with open(call.log, "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
