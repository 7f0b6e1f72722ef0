"""Containers that containerd has lost: it ended before it had recorded their `create`.

After its restart containerd kills them (`cleaning leaked shim process` in its log), and the kubelet creates them again.
Lost containers have run: the pod's volumes differ from the snapshot. So before any further container of the pod is
restored, the lost ones must be dead, and the agent must have unpacked the volumes again. The `create` waits for the
agent, because an error fails a pod with `restartPolicy: Never`.

A containerd that ends while it starts a container may leave the container running, without a record (containerd issue
7680): the kubelet creates it again beside the running one. Then the pod's sandbox is ended as well: the whole pod
starts again, or fails by its `restartPolicy: Never`, and its successor is restored. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cedana_sched.runtime_handler.file_watcher import FileWatcher
from cedana_sched.runtime_handler.kernel import IN_DELETE, IN_MOVED_TO
from cedana_sched.runtime_handler.plan import (
    COLD,
    ContainerResult,
    Plan,
    lost_containers_of,
    mark_lost,
    read_create_record,
    read_result,
    remove_create_record,
    results_folder,
    unmark_lost,
    write_result,
)
from cedana_sched.runtime_handler.runc_restore import may_have_resumed_processes, remove_container
from cedana_sched.runtime_handler.same_process import open_running
from cedana_sched.runtime_handler.shim_command_line import CreateCall

_TURN = ".turn"
WHY = "containerd ended before it had started this container"
BEGINS_AGAIN = "containerd ended while it started this container, which ran on unseen: its pod has to begin again"


@contextmanager
def pod_create_lock(folder: str, *, wait: bool = True) -> Iterator[None]:
    """Serialize the `create` calls of a pod, and the agent's decisions about it.

    A `create` abandoned by containerd may still be in flight.

    Raises:
        BlockingIOError: the lock is held, and `wait` is false.
    """
    descriptor = os.open(f"{results_folder(folder)}/{_TURN}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def end_lost_containers(plan: Plan, runc: str, call: CreateCall, folder: str) -> None:
    """End containers whose `create` began and whose `start` did not follow; mark those that have run as lost.

    The kubelet starts a pod's containers one after the other, so by this `create` it has given up the others.
    """
    for name, container in plan.containers.items():
        begun = read_create_record(folder, name)
        if begun is None or read_result(folder, name) is not None:
            continue
        if begun.id:
            remove_container(runc, call, begun.id)
        if begun.restored or may_have_resumed_processes(container):
            mark_lost(folder, name)
        else:
            remove_create_record(folder, name)


def end_unrecorded_container(container_id: str, sandbox_id: str, runc: str, call: CreateCall) -> bool:
    """End a restored container that containerd has no record of, and its pod's sandbox.

    Returns False, without any effect, if the container has ended already. The kubelet creates no container again that
    it considers running. The sandbox ends first: after that nothing is created in it, even if a later step fails.
    """
    with open_first_process(f"{call.root}/{container_id}") as forgotten:
        if forgotten is None:
            return False
        with open_first_process(f"{call.root}/{sandbox_id}") as pause:
            if pause is not None:
                _kill(pause)
        _kill(forgotten)
    remove_container(runc, call, container_id)
    return True


@contextmanager
def open_first_process(state: str) -> Iterator[int | None]:
    """Yield a pidfd of a container's first process, from runc's state in this folder; None if it has ended."""
    try:
        with open(f"{state}/state.json", encoding="utf-8") as file:
            content = json.load(file)
        descriptor = open_running(int(content["init_process_pid"]), int(content["init_process_start"]))
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _kill(descriptor: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def wait_for_volumes(folder: str, is_over: Callable[[], bool], seconds: float) -> bool:
    """Wait for `is_over`, checked at every change of the pod's files; return False on timeout."""
    if is_over():
        return True
    deadline = time.monotonic() + seconds
    with FileWatcher(folder, results_folder(folder), events=IN_DELETE | IN_MOVED_TO) as changes:
        while not is_over():
            if not changes.wait(deadline - time.monotonic()):
                return False
        return True


def fail_lost_containers(plan: Plan, folder: str, *, beside: bool) -> None:
    """Publish lost containers as failures: after another one's attempt, their volumes are not unpacked again.

    Args:
        plan: the pod's.
        folder: the pod's.
        beside: whether that container runs; else the lost ones start cold, if the plan allows it.
    """
    why = f"{WHY}, and another container of the pod {'still runs' if beside else 'was not restored'}"
    for name in lost_containers_of(folder, plan):
        write_result(folder, name, ContainerResult(restored=False, why=why, cold=plan.fallback == COLD and not beside))
        unmark_lost(folder, name)
