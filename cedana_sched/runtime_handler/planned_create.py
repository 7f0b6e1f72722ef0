"""`create` of a container whose pod has a plan."""

from __future__ import annotations

import json
import os
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from cedana_sched.runtime_handler.containerd_lost_containers import (
    BEGINS_AGAIN,
    WHY,
    end_lost_containers,
    end_unrecorded_container,
    fail_lost_containers,
    pod_create_lock,
    wait_for_volumes,
)
from cedana_sched.runtime_handler.finished_container import replace_process
from cedana_sched.runtime_handler.handler_exit_codes import FAILED, PASS
from cedana_sched.runtime_handler.kernel import die_with_parent
from cedana_sched.runtime_handler.oci_confinement import confinement_of
from cedana_sched.runtime_handler.outside_file_rewind import ChangePolicy, written_keys
from cedana_sched.runtime_handler.outside_files import read_outside_files
from cedana_sched.runtime_handler.plan import (
    COLD,
    RESTORE,
    ContainerResult,
    Plan,
    lost_containers_of,
    read_create_record,
    read_plan,
    read_result,
    remove_create_record,
    result_path,
    write_create_record,
    write_result,
)
from cedana_sched.runtime_handler.privilege_comparison import restore_objection_to
from cedana_sched.runtime_handler.runc_restore import (
    mark_restored,
    may_have_resumed_processes,
    remove_container,
    restore_with_runc,
    write_specification,
)
from cedana_sched.runtime_handler.shim_command_line import CreateCall
from cedana_sched.runtime_handler.shortage_retries import is_shortage, retry_through_shortage

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
    """See `handler.apply_pod_plan`.

    Failures before the restore are waited out, or fail the call: a cold start was not decided. Failures of the restore
    are handled by the policy.
    """
    try:
        call = CreateCall(arguments)
    except ValueError:
        return PASS
    began = time.monotonic()
    try:
        given = retry_through_shortage(lambda: _find_planned_container(call, folder), GLANCE_SECONDS)
        if given is None:
            return PASS
        seconds = given.plan.containers[given.name].seconds if given.name in given.plan.containers else GLANCE_SECONDS
        make = partial(_create, given, call, runc, folder, finished_program, began + seconds)
        return retry_through_shortage(make, seconds / 2)
    except Exception as error:  # noqa: BLE001 - no error may cause a cold start
        _log_error(call, f"the runtime handler failed: {error!r}")
        return FAILED


class _PlannedContainer(NamedTuple):
    """A container whose pod has a plan."""

    plan: Plan
    name: str
    text: str
    """Its specification."""

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads(self.text)
        return spec


def _find_planned_container(call: CreateCall, folder: str) -> _PlannedContainer | None:
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
    return _PlannedContainer(plan, name, text)


def _create(
    given: _PlannedContainer, call: CreateCall, runc: str, folder: str, finished_program: str, deadline: float
) -> int:
    """Apply the plan. May be retried after an error: no process of the container runs then."""
    plan, name, spec = given.plan, given.name, given.spec
    status = _status_if_not_restored(plan, name, call, spec, finished_program)
    if status is None and (known := read_result(folder, name)) is not None:
        status = _create_again(plan, name, known, call, spec, runc, folder)
    if status is not None:
        return status
    die_with_parent(os.getppid())  # a shim that times out kills its runtime: no process may be restored after that
    with pod_create_lock(folder):
        return _restore_after_lost(name, deadline, call, spec, runc, folder)


def _status_if_not_restored(
    plan: Plan, name: str, call: CreateCall, spec: dict[str, Any], finished_program: str
) -> int | None:
    """Return the status for a container that the plan does not restore; None for one that it does, or did."""
    if plan.sandbox and spec["annotations"].get(_SANDBOX, plan.sandbox) != plan.sandbox:
        _log_error(call, "the pod's sandbox was made anew, and what becomes of the pod in it is not decided yet")
        return FAILED
    if name in plan.containers:
        return None
    if name in plan.skip and plan.decision != COLD:
        replace_process(spec, finished_program)
        write_specification(call.bundle, spec)
    return PASS


def _create_again(
    plan: Plan, name: str, known: ContainerResult, call: CreateCall, spec: dict[str, Any], runc: str, folder: str
) -> int:
    """Handle another start of a container with a result: by runc, unless it must not start cold, or still runs."""
    if known.restored and end_unrecorded_container(
        known.id, spec["annotations"].get(_SANDBOX, plan.sandbox), runc, call
    ):
        _log_error(call, BEGINS_AGAIN)
        return FAILED
    if known.restored or known.cold or (plan.decision == COLD and not _has_restored_sibling(plan, name, folder)):
        return PASS
    _log_error(call, known.why)
    return FAILED


def _restore_after_lost(
    name: str, deadline: float, call: CreateCall, spec: dict[str, Any], runc: str, folder: str
) -> int:
    """Restore a container once the pod's lost containers are gone, and its volumes are unpacked."""
    plan = read_plan(folder)
    if plan is not None:
        end_lost_containers(plan, runc, call, folder)
        seconds = plan.containers[name].seconds / 2 if name in plan.containers else 0.0
        if not wait_for_volumes(folder, lambda: _is_restore_unblocked(folder), seconds):
            _log_error(call, f"{WHY}, and the agent has not prepared the pod's volumes again in time")
            return FAILED
        plan = read_plan(folder)
    if plan is None or name not in plan.containers:
        _log_error(call, "what becomes of its pod is being decided anew")
        return FAILED
    if plan.decision == RESTORE and lost_containers_of(folder, plan):
        fail_lost_containers(plan, folder, beside=_has_restored_sibling(plan, name, folder))
    _fail_beside_failed(plan, name, folder)
    if (known := read_result(folder, name)) is not None:
        return _create_again(plan, name, known, call, spec, runc, folder)
    if plan.decision == COLD and not _has_restored_sibling(plan, name, folder):
        return PASS
    if plan.decision != RESTORE:
        _log_error(call, plan.why)
        return FAILED
    return _restore(plan, name, deadline, call, spec, runc, folder)


def _is_restore_unblocked(folder: str) -> bool:
    """Return whether no container is lost, or lost ones will not be restored any more."""
    plan = read_plan(folder)
    if plan is None or plan.decision != RESTORE or not lost_containers_of(folder, plan):
        return True
    return any(read_result(folder, name) is not None for name in plan.containers)


def _restore(
    plan: Plan, name: str, deadline: float, call: CreateCall, spec: dict[str, Any], runc: str, folder: str
) -> int:
    is_first = not _has_restored_sibling(plan, name, folder)

    def may_begin_anew(result: ContainerResult) -> bool:
        return is_first and plan.may_start_cold(files_changed=result.files_changed)

    container = plan.containers[name]
    if (why := restore_objection_to(container.privileges, confinement_of(spec))) is not None:
        result = ContainerResult(restored=False, why=why)
        return _publish_not_restored(name, result._replace(cold=may_begin_anew(result)), call, folder)
    write_create_record(folder, name, ContainerResult(restored=False, id=call.id))
    changes = ChangePolicy(plan.on_change, _files_of_restored_siblings(plan, name, folder))
    try:
        result = restore_with_runc(
            runc, call, container, spec, deadline=deadline, clean_after_failure=may_begin_anew, changes=changes
        )
    except Exception as error:
        if is_shortage(error) and not may_have_resumed_processes(container):
            raise  # the next attempt finds the record, and ends the container first
        trace = traceback.format_exc().splitlines()
        result = ContainerResult(restored=False, why=f"the runtime handler failed: {error!r}", tail=tuple(trace[-20:]))
        if may_begin_anew(result):
            remove_container(runc, call, call.id)
    if result.restored:
        return _hand_over_restored(name, result, call, runc, folder, container.work)
    return _publish_not_restored(name, result._replace(cold=may_begin_anew(result)), call, folder)


def _publish_not_restored(name: str, result: ContainerResult, call: CreateCall, folder: str) -> int:
    """Publish that a container is not restored; it starts cold if the result permits it."""
    write_result(folder, name, result)
    remove_create_record(folder, name)
    if result.cold:
        return PASS
    _log_error(call, result.why)
    return FAILED


def _hand_over_restored(name: str, result: ContainerResult, call: CreateCall, runc: str, folder: str, work: str) -> int:
    """Hand a restored container over to its `start`; remove it if it must not run any more, or cannot be recorded."""
    try:
        retry_through_shortage(lambda: write_create_record(folder, name, result), KEEP_SECONDS)
        plan = retry_through_shortage(lambda: read_plan(folder), KEEP_SECONDS)
        if plan is not None and plan.decision in (RESTORE, COLD):
            retry_through_shortage(lambda: mark_restored(call, result_path(folder, name), work), KEEP_SECONDS)
            return 0
        why = plan.why if plan is not None else "what becomes of its pod is being decided anew"
        remove_container(runc, call, call.id)
        remove_create_record(folder, name)
    except OSError as error:
        why = f"it was restored, but the result cannot be written: {error}"
        remove_container(runc, call, call.id)  # its record makes it lost, and it is restored once more
    _log_error(call, why)
    return FAILED


def _fail_beside_failed(plan: Plan, name: str, folder: str) -> None:
    """Publish a container's failure before its attempt, if another container of the pod has failed."""
    results = [read_result(folder, other) for other in plan.containers if other != name]
    failed = [result for result in results if result is not None and not result.restored]
    if plan.decision == RESTORE and failed:
        why = "another container of the pod was not restored"
        changed = any(result.files_changed for result in failed)
        cold = plan.may_start_cold(files_changed=changed) and not _has_restored_sibling(plan, name, folder)
        if read_result(folder, name) is None:
            result = ContainerResult(restored=False, why=why, cold=cold, files_changed=changed)
            write_result(folder, name, result)


def _has_restored_sibling(plan: Plan, name: str, folder: str) -> bool:
    """Return whether another container of the pod was restored: beside it, this one must not start cold."""
    results = (read_result(folder, other) for other in plan.containers if other != name)
    return any(result is not None and result.restored for result in results)


def _files_of_restored_siblings(plan: Plan, name: str, folder: str) -> frozenset[tuple[int, int]]:
    """Return the files that restored containers of the pod write to: they were judged when these were restored.

    Raises:
        OSError: a record cannot be read now.
    """
    found: set[tuple[int, int]] = set()
    for other, container in plan.containers.items():
        result = None if other == name else read_result(folder, other) or read_create_record(folder, other)
        if result is not None and result.restored:
            found.update(written_keys(read_outside_files(container.images)))
    return frozenset(found)


def _log_error(call: CreateCall, why: str) -> None:
    """Write the error for the kubelet into runc's log."""
    if call.log is None:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"level": "error", "msg": f"cedana: not continued from its snapshot: {why}", "time": now}
    with suppress(OSError), open(call.log, "a", encoding="utf-8") as file:  # best-effort
        file.write(json.dumps(entry) + "\n")
