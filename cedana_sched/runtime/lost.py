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

from cedana_sched.runtime.call import CreateCall
from cedana_sched.runtime.changes import Changes
from cedana_sched.runtime.continuing import may_have_run, remove_container
from cedana_sched.runtime.kernel import IN_DELETE, IN_MOVED_TO
from cedana_sched.runtime.plan import (
    COLD,
    Plan,
    Result,
    forget_begun,
    forget_lost,
    lost_of,
    mark_lost,
    read_begun,
    read_result,
    results_folder,
    write_result,
)
from cedana_sched.runtime.same_process import open_running

_TURN = ".turn"
WHY = "containerd ended before it had started this container"
BEGINS_AGAIN = "containerd ended while it started this container, which ran on unseen: its pod has to begin again"


@contextmanager
def turn(folder: str, *, wait: bool = True) -> Iterator[None]:
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


def end_lost(plan: Plan, runc: str, call: CreateCall, folder: str) -> None:
    """End containers whose `create` began and whose `start` did not follow; mark those that have run as lost.

    The kubelet starts a pod's containers one after the other, so by this `create` it has given up the others.
    """
    for name, container in plan.containers.items():
        begun = read_begun(folder, name)
        if begun is None or read_result(folder, name) is not None:
            continue
        if begun.id:
            remove_container(runc, call, begun.id)
        if begun.restored or may_have_run(container):
            mark_lost(folder, name)
        else:
            forget_begun(folder, name)


def end_forgotten(container_id: str, sandbox_id: str, runc: str, call: CreateCall) -> bool:
    """End a restored container that containerd has no record of, and its pod's sandbox.

    Returns False, without any effect, if the container has ended already. The kubelet creates no container again that
    it considers running. The sandbox ends first: after that nothing is created in it, even if a later step fails.
    """
    with first_process(f"{call.root}/{container_id}") as forgotten:
        if forgotten is None:
            return False
        with first_process(f"{call.root}/{sandbox_id}") as pause:
            if pause is not None:
                _kill(pause)
        _kill(forgotten)
    remove_container(runc, call, container_id)
    return True


@contextmanager
def first_process(state: str) -> Iterator[int | None]:
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


def wait_until_laid(folder: str, is_over: Callable[[], bool], seconds: float) -> bool:
    """Wait for `is_over`, checked at every change of the pod's files; return False on timeout."""
    if is_over():
        return True
    deadline = time.monotonic() + seconds
    with Changes(folder, results_folder(folder), events=IN_DELETE | IN_MOVED_TO) as changes:
        while not is_over():
            if not changes.wait(deadline - time.monotonic()):
                return False
        return True


def give_up(plan: Plan, folder: str, *, beside: bool) -> None:
    """Publish lost containers as failures: after another one's attempt, their volumes are not unpacked again.

    Args:
        plan: the pod's.
        folder: the pod's.
        beside: whether that container runs; else the lost ones start cold, if the plan allows it.
    """
    why = f"{WHY}, and another container of the pod {'still runs' if beside else 'was not restored'}"
    for name in lost_of(folder, plan):
        write_result(folder, name, Result(restored=False, why=why, cold=plan.fallback == COLD and not beside))
        forget_lost(folder, name)
