"""Containers that containerd has lost: it ended before it had written down their `create`.

When it comes back it kills them (`cleaning leaked shim process` in its log), and the kubelet has them created anew.
They have run: the volumes of the pod are not those of the snapshot any more. So before any container of the pod is
continued after that, the lost ones are dead, and the agent has laid the volumes anew. The `create` waits for the agent,
because a refusal ends a pod with `restartPolicy: Never`.

A containerd that ends while it starts a container may leave it running, and forget it (containerd issue 7680): the
kubelet has it created anew beside what runs. Then the pod's sandbox ends as well: the whole pod begins again, or fails
by its `restartPolicy: Never`, and its successor continues.
Standard library only.
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
    """One `create` of a pod at a time, and no decision of the agent's beside it.

    A `create` that containerd has left alone may still be under way.

    Raises:
        BlockingIOError: it is somebody else's, and nobody is to be waited for.
    """
    descriptor = os.open(f"{results_folder(folder)}/{_TURN}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def end_lost(plan: Plan, runc: str, call: CreateCall, folder: str) -> None:
    """End what a `create` of the pod has begun and no `start` has followed. Those that have run are marked as lost.

    The kubelet starts one container of a pod after the other, so whatever it creates now, it has given up the others.
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
    """End a container that has come back, and its pod's sandbox; False, and nothing is done, where it has ended.

    A kubelet creates no container anew beside one that it sees running. The sandbox ends first: nothing is created in
    it any more, whatever keeps the rest from being done.
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
    """A pidfd of the first process of a container, of which runc keeps its state in this folder; None: it has ended."""
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
    """Wait for `is_over`, which is called whenever a file of the pod goes or comes; False where it takes longer."""
    if is_over():
        return True
    deadline = time.monotonic() + seconds
    with Changes(folder, results_folder(folder), events=IN_DELETE | IN_MOVED_TO) as changes:
        while not is_over():
            if not changes.wait(deadline - time.monotonic()):
                return False
        return True


def give_up(plan: Plan, folder: str, *, beside: bool) -> None:
    """Publish the lost ones as failures: nobody lays their volumes, for another container has had its turn.

    Args:
        plan: the pod's.
        folder: the pod's.
        beside: whether that one runs on; else they begin anew, where the plan allows it.
    """
    why = f"{WHY}, and another container of the pod {'runs on' if beside else 'did not come back'}"
    for name in lost_of(folder, plan):
        write_result(folder, name, Result(restored=False, why=why, cold=plan.fallback == COLD and not beside))
        forget_lost(folder, name)
