"""The restore container: waits for the agent's decision on its pod, and prints it to the pod's log.

The restore container is the first init container of a pod that is restored from a snapshot; the others wait for its
end. The container shares a folder with the agent:

    waiting         written here, with this run's own number: the container runs, so all volumes of the pod are mounted
    progress        human-readable lines, printed as they arrive
    alive           touched by the agent now and then: the agent has seen this pod
    decision.NUMBER `restore`, `cold` or `fail`, and the reason in the lines after it; written atomically. `decision`,
                    of earlier agents, counts if it is written after this run has begun
    taken.NUMBER    written here, once the decision is read

The folder outlives the container: a decision for an earlier run does not apply to this one. `restore` and `cold` let
the pod proceed, `fail` ends it. Without a sign of the agent for long, the container ends, so that the pod's status
shows a failure, and the kubelet restarts it. Any user, no privilege, no network, standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from cedana_sched.runtime_handler.file_watcher import FileWatcher

FOLDER = "/run/cedana-restore"
WAITING, PROGRESS, DECISION, TAKEN, ALIVE = "waiting", "progress", "decision", "taken", "alive"
SILENT_SECONDS = 900.0
"""The agent touches `alive` every half minute. The agent may be away for as long as its upgrade takes."""
SILENT = 75
"""The status without a sign of an agent: EX_TEMPFAIL of sysexits(3)."""
_MEANING = {"restore": "continuing from the snapshot", "cold": "starting from the beginning", "fail": "not started"}
_STATUS = {"restore": 0, "cold": 0, "fail": 1}


def main() -> NoReturn:
    """Entry point `cedana-sched-restore-wait`; arguments override the folder, and the timeout in seconds."""
    signal.signal(signal.SIGTERM, _on_termination_signal)
    folder = sys.argv[1] if len(sys.argv) > 1 else FOLDER
    sys.exit(wait(folder, float(sys.argv[2]) if len(sys.argv) > 2 else SILENT_SECONDS))


def wait(folder: str, silent_seconds: float = SILENT_SECONDS) -> int:
    """Wait for a decision; return the exit status."""
    _print_flushed("waiting until the snapshot is staged on this node")
    number = os.urandom(8).hex()
    with FileWatcher(folder) as changes:  # before the first read: nothing is missed
        printed = _file_size(f"{folder}/{PROGRESS}")  # printed by an earlier run
        with open(f"{folder}/.{WAITING}.{number}", "w", encoding="utf-8") as file:
            file.write(number)
        os.rename(f"{folder}/.{WAITING}.{number}", f"{folder}/{WAITING}")
        for name in _changed_names(changes, silent_seconds):
            printed = _print_progress(folder, printed)
            mine = name == f"{DECISION}.{number}"
            if (mine or name == DECISION) and (status := _report_decision(f"{folder}/{name}")) is not None:
                if mine:
                    with open(f"{folder}/{TAKEN}.{number}", "w", encoding="utf-8"):
                        pass  # the decision is root's, and the folder sticky: it cannot be deleted
                return status
    _print_flushed(f"no sign of this node's agent for {silent_seconds:g} s: does it run? Ending, to be started again")
    return SILENT


def _changed_names(changes: FileWatcher, silent_seconds: float) -> Iterator[str]:
    """Yield the names of files that other processes have created or changed; ends after the timeout without any."""
    deadline = time.monotonic() + silent_seconds
    while names := changes.wait(deadline - time.monotonic()):
        for name in names:
            if not name.lstrip(".").startswith(WAITING):
                deadline = time.monotonic() + silent_seconds
                yield name


def _file_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _print_progress(folder: str, printed: int) -> int:
    """Print the whole lines after the first `printed` bytes; return the new number of printed bytes."""
    try:
        with open(f"{folder}/{PROGRESS}", "rb") as file:
            file.seek(printed)
            lines, end, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return printed
    if end:
        _print_flushed(lines.decode(errors="replace"))
    return printed + len(lines) + len(end)


def _report_decision(path: str) -> int | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            decision, _, why = file.read().partition("\n")
    except FileNotFoundError:
        return None
    description = _MEANING.get(decision, f"not started: the decision {decision!r} is not known")
    _print_flushed(": ".join(filter(None, (description, why.strip()))))
    return _STATUS.get(decision, 1)


def _print_flushed(text: str) -> None:
    print(text, flush=True)


def _on_termination_signal(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
