"""`create` of a container whose pod has a plan."""

from __future__ import annotations

import json
import os
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from cedana_sched.runtime.call import CreateCall
from cedana_sched.runtime.confinement import confinement_of
from cedana_sched.runtime.continuing import (
    continue_container,
    mark_restored,
    may_have_run,
    remove_container,
    write_specification,
)
from cedana_sched.runtime.exit_status import FAILED, PASS
from cedana_sched.runtime.finished import replace_process
from cedana_sched.runtime.kernel import die_with_parent
from cedana_sched.runtime.lost import BEGINS_AGAIN, WHY, end_forgotten, end_lost, give_up, turn, wait_until_laid
from cedana_sched.runtime.plan import (
    COLD,
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
from cedana_sched.runtime.privileges import objection_to
from cedana_sched.runtime.shortages import is_shortage, wait_out

GLANCE_SECONDS = 55.0
"""Timeout for reading a plan; the kubelet waits twice as long."""
KEEP_SECONDS = 5.0
"""Timeout for recording a restored container."""
_CONTAINER_NAME = "io.kubernetes.cri.container-name"
_CONTAINER_TYPE = "io.kubernetes.cri.container-type"
_SANDBOX = "io.kubernetes.cri.sandbox-id"
_RESTORE_CONTAINER = "cedana-restore"
"""`model.objects.names.RESTORE_CONTAINER`, which is not installed on the host: that container only waits for the
decision."""


def create(arguments: list[str], runc: str, folder: str, finished_program: str) -> int:
    """See `handler.handle`.

    Failures before the restore are waited out, or fail the call: a cold start was not decided. Failures of the restore
    are handled by the policy.
    """
    try:
        call = CreateCall(arguments)
    except ValueError:
        return PASS
    began = time.monotonic()
    try:
        given = wait_out(lambda: _given(call, folder), GLANCE_SECONDS)
        if given is None:
            return PASS
        seconds = given.plan.containers[given.name].seconds if given.name in given.plan.containers else GLANCE_SECONDS
        make = partial(_create, given, call, runc, folder, finished_program, began + seconds)
        return wait_out(make, seconds / 2)
    except Exception as error:  # noqa: BLE001 - no error may cause a cold start
        _say(call, f"the runtime handler failed: {error!r}")
        return FAILED


class _Given(NamedTuple):
    """A container whose pod has a plan."""

    plan: Plan
    name: str
    text: str
    """Its specification."""

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads(self.text)
        return spec


def _given(call: CreateCall, folder: str) -> _Given | None:
    """Return the container to create; None if it does not concern us."""
    plan = read_plan(folder)
    if plan is None or (plan.decision == COLD and not plan.sandbox):
        return None
    with open(f"{call.bundle}/config.json", encoding="utf-8") as file:
        text = file.read()
    try:
        annotations = json.loads(text).get("annotations", {})
    except ValueError:
        return None
    name = annotations.get(_CONTAINER_NAME)
    if annotations.get(_CONTAINER_TYPE) != "container" or not name or name == _RESTORE_CONTAINER:
        return None
    return _Given(plan, name, text)


def _create(given: _Given, call: CreateCall, runc: str, folder: str, finished_program: str, deadline: float) -> int:
    """Apply the plan. May be retried after an error: no process of the container runs then."""
    plan, name, spec = given.plan, given.name, given.spec
    status = _status_of_others(plan, name, call, spec, finished_program)
    if status is None and (known := read_result(folder, name)) is not None:
        status = _again(plan, name, known, call, spec, runc, folder)
    if status is not None:
        return status
    die_with_parent(os.getppid())  # a shim that times out kills its runtime: no process may be restored after that
    with turn(folder):
        return _in_turn(name, deadline, call, spec, runc, folder)


def _status_of_others(
    plan: Plan, name: str, call: CreateCall, spec: dict[str, Any], finished_program: str
) -> int | None:
    """Return the status for a container that the plan does not restore; None for one that it does, or did."""
    if plan.sandbox and spec["annotations"].get(_SANDBOX, plan.sandbox) != plan.sandbox:
        _say(call, "the pod's sandbox was made anew, and what becomes of the pod in it is not decided yet")
        return FAILED
    if name in plan.containers:
        return None
    if name in plan.skip and plan.decision != COLD:
        replace_process(spec, finished_program)
        write_specification(call.bundle, spec)
    return PASS


def _again(plan: Plan, name: str, known: Result, call: CreateCall, spec: dict[str, Any], runc: str, folder: str) -> int:
    """Handle another start of a container with a result: by runc, unless it must not start cold, or still runs."""
    if known.restored and end_forgotten(known.id, spec["annotations"].get(_SANDBOX, plan.sandbox), runc, call):
        _say(call, BEGINS_AGAIN)
        return FAILED
    if known.restored or known.cold or (plan.decision == COLD and not _others_continued(plan, name, folder)):
        return PASS
    _say(call, known.why)
    return FAILED


def _in_turn(name: str, deadline: float, call: CreateCall, spec: dict[str, Any], runc: str, folder: str) -> int:
    """Restore a container once the pod's lost containers are gone, and its volumes are unpacked."""
    plan = read_plan(folder)
    if plan is not None:
        end_lost(plan, runc, call, folder)
        seconds = plan.containers[name].seconds / 2 if name in plan.containers else 0.0
        if not wait_until_laid(folder, lambda: _may_go_on(folder), seconds):
            _say(call, f"{WHY}, and the agent has not prepared the pod's volumes again in time")
            return FAILED
        plan = read_plan(folder)
    if plan is None or name not in plan.containers:
        _say(call, "what becomes of its pod is being decided anew")
        return FAILED
    if plan.decision == RESTORE and lost_of(folder, plan):
        give_up(plan, folder, beside=_others_continued(plan, name, folder))
    _give_up_beside_failed(plan, name, folder)
    if (known := read_result(folder, name)) is not None:
        return _again(plan, name, known, call, spec, runc, folder)
    if plan.decision == COLD and not _others_continued(plan, name, folder):
        return PASS
    if plan.decision != RESTORE:
        _say(call, plan.why)
        return FAILED
    return _restore(plan, name, deadline, call, spec, runc, folder)


def _may_go_on(folder: str) -> bool:
    """Return whether no container is lost, or lost ones will not be restored any more."""
    plan = read_plan(folder)
    if plan is None or plan.decision != RESTORE or not lost_of(folder, plan):
        return True
    return any(read_result(folder, name) is not None for name in plan.containers)


def _restore(
    plan: Plan, name: str, deadline: float, call: CreateCall, spec: dict[str, Any], runc: str, folder: str
) -> int:
    may_begin_anew = plan.fallback == COLD and not _others_continued(plan, name, folder)
    container = plan.containers[name]
    if (why := objection_to(container.privileges, confinement_of(spec))) is not None:
        return _give_up(name, Result(restored=False, why=why, cold=may_begin_anew), call, folder)
    write_begun(folder, name, Result(restored=False, id=call.id))
    try:
        result = continue_container(runc, call, container, spec, deadline=deadline, clean_after_failure=may_begin_anew)
    except Exception as error:
        if is_shortage(error) and not may_have_run(container):
            raise  # the next attempt finds the record, and ends the container first
        trace = traceback.format_exc().splitlines()
        result = Result(restored=False, why=f"the runtime handler failed: {error!r}", tail=tuple(trace[-20:]))
        if may_begin_anew:
            remove_container(runc, call, call.id)
    if result.restored:
        return _keep(name, result, call, runc, folder, container.work)
    return _give_up(name, result._replace(cold=may_begin_anew), call, folder)


def _give_up(name: str, result: Result, call: CreateCall, folder: str) -> int:
    """Publish that a container is not restored; it starts cold if the result permits it."""
    write_result(folder, name, result)
    forget_begun(folder, name)
    if result.cold:
        return PASS
    _say(call, result.why)
    return FAILED


def _keep(name: str, result: Result, call: CreateCall, runc: str, folder: str, work: str) -> int:
    """Hand a restored container over to its `start`; remove it if it must not run any more, or cannot be recorded."""
    try:
        wait_out(lambda: write_begun(folder, name, result), KEEP_SECONDS)
        plan = wait_out(lambda: read_plan(folder), KEEP_SECONDS)
        if plan is not None and plan.decision in (RESTORE, COLD):
            wait_out(lambda: mark_restored(call, result_path(folder, name), work), KEEP_SECONDS)
            return 0
        why = plan.why if plan is not None else "what becomes of its pod is being decided anew"
        remove_container(runc, call, call.id)
        forget_begun(folder, name)
    except OSError as error:
        why = f"it was restored, but the result cannot be written: {error}"
        remove_container(runc, call, call.id)  # its record makes it lost, and it is restored once more
    _say(call, why)
    return FAILED


def _give_up_beside_failed(plan: Plan, name: str, folder: str) -> None:
    """Publish a container's failure before its attempt, if another container of the pod has failed."""
    results = [read_result(folder, other) for other in plan.containers if other != name]
    if plan.decision == RESTORE and any(result is not None and not result.restored for result in results):
        why = "another container of the pod was not restored"
        may_begin_anew = plan.fallback == COLD and not _others_continued(plan, name, folder)
        if read_result(folder, name) is None:
            write_result(folder, name, Result(restored=False, why=why, cold=may_begin_anew))


def _others_continued(plan: Plan, name: str, folder: str) -> bool:
    """Return whether another container of the pod was restored: beside it, this one must not start cold."""
    results = (read_result(folder, other) for other in plan.containers if other != name)
    return any(result is not None and result.restored for result in results)


def _say(call: CreateCall, why: str) -> None:
    """Write the error for the kubelet into runc's log."""
    if call.log is None:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"level": "error", "msg": f"cedana: not continued from its snapshot: {why}", "time": now}
    with suppress(OSError), open(call.log, "a", encoding="utf-8") as file:  # best-effort
        file.write(json.dumps(entry) + "\n")
