"""The restore container: waits until the agent has decided what becomes of its pod, and says so in the pod's log.

It is the first init container of a pod that continues from a snapshot; the others wait for its end. It shares a folder
with the agent:

    waiting     written here: the container runs, so all volumes of the pod are mounted
    progress    lines for people, as they come; printed
    decision    `restore`, `cold` or `fail`, and the reason in the lines after it; written in one step

`restore` and `cold` let the pod go on, `fail` ends it. Any user, no privilege, no network, standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from cedana_sched.runtime.kernel import changes, watched

FOLDER = "/run/cedana-restore"
WAITING, PROGRESS, DECISION = "waiting", "progress", "decision"
_SAID = {"restore": "continuing from the snapshot", "cold": "starting from the beginning", "fail": "not started"}
_STATUS = {"restore": 0, "cold": 0, "fail": 1}


def main() -> NoReturn:
    """Entry point `cedana-sched-restore-wait`; an argument names another folder."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(wait(sys.argv[1] if len(sys.argv) > 1 else FOLDER))


def wait(folder: str) -> int:
    """Return the status to end with."""
    _say("waiting for the snapshot to be laid on this node")
    descriptor = watched(folder)  # before the first look: nothing is missed
    with open(f"{folder}/{WAITING}", "w", encoding="utf-8"):
        pass
    told = _tell_progress(folder, 0)
    status = _decided(folder)
    if status is None:
        for name in changes(descriptor):
            told = _tell_progress(folder, told)
            if name == DECISION and (status := _decided(folder)) is not None:
                break
    os.close(descriptor)
    return status if status is not None else 1


def _tell_progress(folder: str, told: int) -> int:
    """Print the whole lines after the first `told` bytes; returns how much has been told."""
    try:
        with open(f"{folder}/{PROGRESS}", "rb") as file:
            file.seek(told)
            lines, end, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return told
    if end:
        _say(lines.decode(errors="replace"))
    return told + len(lines) + len(end)


def _decided(folder: str) -> int | None:
    try:
        with open(f"{folder}/{DECISION}", encoding="utf-8", errors="replace") as file:
            decision, _, why = file.read().partition("\n")
    except FileNotFoundError:
        return None
    said = _SAID.get(decision, f"not started: the decision {decision!r} is not known")
    _say(": ".join(filter(None, (said, why.strip()))))
    return _STATUS.get(decision, 1)


def _say(text: str) -> None:
    print(text, flush=True)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
