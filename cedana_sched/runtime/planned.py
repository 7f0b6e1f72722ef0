"""`create` of a container whose pod has a plan."""

from __future__ import annotations

import json
import os
import time
import traceback
from typing import Any

from cedana_sched.runtime.call import CreateCall
from cedana_sched.runtime.continuing import continue_container, remove_container, write_specification
from cedana_sched.runtime.finished import replace_process
from cedana_sched.runtime.handler import FAILED, PASS
from cedana_sched.runtime.kernel import die_with_parent
from cedana_sched.runtime.plan import COLD, FAIL, Plan, Result, read_plan, read_result, write_result

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
    if plan.sandbox and annotations.get(_SANDBOX, plan.sandbox) != plan.sandbox:
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
    if plan.decision == FAIL:
        _say(call, plan.why)
        return FAILED
    return _first(plan, name, call, spec, runc, folder)


def _again(known: Result, call: CreateCall) -> int:
    """The kubelet starts a container that had its turn: as any other, unless it must not begin anew."""
    if known.restored or known.cold:
        return PASS
    _say(call, known.why)
    return FAILED


def _first(plan: Plan, name: str, call: CreateCall, spec: dict[str, Any], runc: str, folder: str) -> int:
    may_begin_anew = plan.fallback == COLD and not _others_continued(plan, name, folder)
    try:
        die_with_parent(os.getppid())  # a shim that gives up kills its runtime: nothing of it may come alive later
        result = continue_container(runc, call, plan.containers[name], spec, clean_after_failure=may_begin_anew)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not keep a container from starting
        trace = traceback.format_exc().splitlines()
        result = Result(restored=False, why=f"the runtime handler failed: {error!r}", tail=tuple(trace[-20:]))
        if may_begin_anew:
            remove_container(runc, call)
    if result.restored:
        write_result(folder, name, result)
        return 0
    write_result(folder, name, result._replace(cold=may_begin_anew))
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
