"""The kubelet's graceful shutdown of this node, from the file in which the kubelet records it.

Before a shutdown of the machine the kubelet ends all pods, group by group in the order of their priorities. It deletes
none of them: it calls their preStop hooks, ends them, and sets them to Failed. Before the first hook it writes its
file. Without that file, a hook of a pod that is not deleted is one of a container that a probe has ended.

A shutdown that is cancelled is not recorded: the kubelet ends all pods, writes the end, and admits pods again. The
machine ends seconds after that, and this agent with it; so a shutdown that an agent outlives was cancelled.

Source: kubelet 1.36, `pkg/kubelet/nodeshutdown`. The file is written while the feature gate
`GracefulNodeShutdownBasedOnPodPriority` is on, as it is by default since 1.24.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import structlog
import yaml
from asyncinotify import Mask

from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch, Now
from cedana_sched.cluster.node.interruptions.shutdown_record import ShutdownRecord, ShutdownRecords, read_boot_id
from cedana_sched.cluster.node.kubelet_configuration import KubeletConfigurationReader
from cedana_sched.component.folder_watches import FolderChanges, shared_folder_watches
from cedana_sched.kube.graceful_node_shutdown import seconds_for_pods
from cedana_sched.model.objects.node_interruption import (
    InterruptionKind,
    InterruptionSource,
    NodeInterruption,
    left_out_mark,
)

log = structlog.get_logger(__name__)

STATE_FILE: Final = "graceful_node_shutdown_state"
OUTLIVED_SECONDS: Final = 60.0
"""After the kubelet has ended all pods: the machine ends within seconds, unless the shutdown was cancelled."""
_MOST_BYTES: Final = 4096
_GO_ZERO: Final = "0001-01-01T00:00:00Z"


class _State(msgspec.Struct, frozen=True, rename="camel"):
    """The kubelet's file; a time that is not set is Go's zero."""

    start_time: str = _GO_ZERO
    end_time: str = _GO_ZERO


class KubeletShutdown:
    """The shutdown of one node.

    Args:
        folder: the kubelet's directory of files, as this process sees it.
        records: what the agents of this node have announced.
        configuration: of the kubelet: the seconds that its shutdown takes.
        proc: the machine's, for the id of its boot.
        outlived_seconds: after the end of a shutdown, until it counts as cancelled.
    """

    def __init__(
        self,
        folder: Path,
        records: ShutdownRecords,
        configuration: KubeletConfigurationReader,
        proc: Path = Path("/proc"),
        outlived_seconds: float = OUTLIVED_SECONDS,
    ) -> None:
        self._folder = folder
        self._records = records
        self._configuration = configuration
        self._proc = proc
        self._outlived_seconds = outlived_seconds
        self._boot = ""
        """Id of the machine's boot; empty until it was read."""
        self._is_read = False
        self._announced = ""
        """Begin of the announced shutdown; empty if there is none."""
        self._notice: NodeInterruption | None = None

    def is_in_progress(self) -> bool:
        """Return whether the kubelet is ending the node's pods; reads a small file."""
        return bool(self._begin_in_progress())

    def left_out_mark(self) -> str | None:
        """Return the mark of pods that are not saved from the announced shutdown; None if none is announced."""
        return None if self._notice is None else left_out_mark(self._notice.key)

    def watch(self, now: Now) -> NoticeWatch:
        """Return the watch that reads this shutdown as a notice.

        Args:
            now: the current time, by the API server.
        """

        async def read() -> NodeInterruption | None:
            return await self._read_notice(now)

        return NoticeWatch("shutdown of the node", read, poll_seconds=0.0)

    async def _read_notice(self, now: Now) -> NodeInterruption | None:
        """Return at once the first time, then wait for the begin of a shutdown, or until one is outlived.

        Of a shutdown that has begun before the first time, and that no agent has announced, it is unknown how much time
        is left.
        """
        if self._is_read:
            begin = await self._wait_change()
            seconds = await asyncio.to_thread(self._read_seconds) if begin else None
        else:
            self._is_read = True
            begin, seconds = self._begin_in_progress(), None
        if not begin:
            self._announced, self._notice = "", None
            return None
        record = self._read_record()
        if record.announced != begin or record.notice is None:
            observed = now()
            ends_at = None if seconds is None else observed + timedelta(seconds=seconds)
            notice = NodeInterruption.from_times(
                InterruptionSource.KUBELET, InterruptionKind.SHUTDOWN, ends_at, observed
            )
            record = self._write_record(msgspec.structs.replace(record, announced=begin, notice=notice))
        self._announced, self._notice = begin, record.notice
        return self._notice

    async def _wait_change(self) -> str:
        """Wait until a shutdown begins that is not announced, or the announced one is outlived.

        Returns:
            The begin of the shutdown; empty if one is outlived.
        """
        with shared_folder_watches().open_waiter() as changes:
            changes.add(self._folder, Mask.MOVED_TO)  # the kubelet renames its file into place
            outlived_at: float | None = None
            while True:
                begin = self._begin_in_progress()
                if begin not in {"", self._announced}:
                    return begin
                if begin or not self._announced:
                    outlived_at = None
                elif outlived_at is None:
                    outlived_at = asyncio.get_running_loop().time() + self._outlived_seconds
                if not await _wait_until(outlived_at, changes):
                    return ""

    def _begin_in_progress(self) -> str:
        """Return when the shutdown of this boot has begun that has not ended; empty if there is none.

        A shutdown that the machine's end has cut off left its file without an end.
        """
        try:
            earlier, state = self._read_record().earlier, self._read_state()
        except (OSError, ValueError) as error:
            log.warning("the kubelet's record of a shutdown cannot be read", error=str(error))
            return ""
        is_in_progress = state.start_time not in {_GO_ZERO, earlier} and state.end_time == _GO_ZERO
        return state.start_time if is_in_progress else ""

    def _read_state(self) -> _State:
        """Return what the kubelet has written last.

        Raises:
            OSError, ValueError: the file is unreadable, or not the kubelet's.
        """
        try:
            with (self._folder / STATE_FILE).open("rb") as file:
                return msgspec.json.decode(file.read(_MOST_BYTES), type=_State)
        except FileNotFoundError:
            return _State()

    def _read_record(self) -> ShutdownRecord:
        self._boot = self._boot or read_boot_id(self._proc)
        record = self._records.read(self._boot)
        return self._write_record(ShutdownRecord(self._boot, self._find_earlier())) if record is None else record

    def _find_earlier(self) -> str:
        try:
            return self._read_state().start_time
        except (OSError, ValueError):  # whatever follows is another one
            return _GO_ZERO

    def _write_record(self, record: ShutdownRecord) -> ShutdownRecord:
        self._records.write(record)
        return record

    def _read_seconds(self) -> float | None:
        try:
            return seconds_for_pods(self._configuration.read().content)
        except (OSError, ValueError, yaml.YAMLError) as error:
            log.warning("the time of the node's shutdown is unknown", error=str(error))
            return None


async def _wait_until(moment: float | None, changes: FolderChanges) -> bool:
    """Wait for a change until that moment of the loop's time (None: for ever); return whether there was one."""
    try:
        async with asyncio.timeout_at(moment):
            await changes.wait()
    except TimeoutError:
        return False
    return True
