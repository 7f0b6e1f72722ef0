"""Stop signals from outside that are pending in a frozen container, and are dropped at its restore.

When the kubelet ends a pod it sends its containers SIGTERM, or their image's own stop signal. A frozen container gets
it, too, if the pod's hold broke (its agent was killed, the hook timed out), and it stays pending: CRIU saves pending
signals, so that the program would end itself right after its restore, on another node, in another pod.

For a signal from outside the PID namespace the kernel names no sender (pid 0). Signals among the container's own
processes stay pending.
"""

from __future__ import annotations

import base64
import signal
import struct
from pathlib import Path

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, folder_reader

_STOPS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGRTMIN + 3})
"""The last one is systemd's, for containers."""
_FIRST_PROCESS = "core-1.img"
_HEAD = struct.Struct("<iii4xi")
"""siginfo_t of a signal that a process sent: si_signo, si_errno, si_code, si_pid."""
_SI_USER = 0


def drop_outside_stops(toolchain: Toolchain, images: Path) -> int:
    """Drop those of the first process from the staged images; return how many.

    Raises:
        SnapshotError: its image cannot be decoded.
    """
    decoded = Images(toolchain, folder_reader(images))
    if (content := decoded.read_image(_FIRST_PROCESS)) is None:
        return 0
    dropped = 0
    for entry in content["entries"]:
        for owner, queue in (("tc", "signals_s"), ("thread_core", "signals_p")):
            pending: Entry = entry.get(owner, {}).get(queue, {})
            kept = [one for one in pending.get("signals", ()) if not _is_stop_from_outside(one)]
            dropped += len(pending.get("signals", ())) - len(kept)
            if pending:
                pending["signals"] = kept
    if dropped:
        decoded.replace(images / _FIRST_PROCESS, content)
    return dropped


def _is_stop_from_outside(pending: Entry) -> bool:
    information = base64.b64decode(pending["siginfo"])
    if len(information) < _HEAD.size:
        raise SnapshotError(f"image {_FIRST_PROCESS} cannot be decoded: a siginfo of {len(information)} bytes")
    number, _, code, sender = _HEAD.unpack_from(information)
    return code == _SI_USER and sender == 0 and number in _STOPS
