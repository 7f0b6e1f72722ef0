"""The kubelet's graceful shutdown of this node, from the file in which the kubelet records it.

Before a shutdown of the machine the kubelet ends all pods, group by group in the order of their priorities. It deletes
none of them: it calls their preStop hooks, ends them, and sets them to Failed. Before the first hook it writes its
file. Without that file, a hook of a pod that is not deleted is one of a container that a probe has ended.

A shutdown that has begun is not withdrawn here. If the machine does not end after all, the kubelet has ended this
agent's pod, too, and its successor starts once the kubelet admits pods again.

Source: kubelet 1.36, `pkg/kubelet/nodeshutdown`. The file is written while the feature gate
`GracefulNodeShutdownBasedOnPodPriority` is on, as it is by default since 1.24.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import yaml
from asyncinotify import Mask

from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch, Now
from cedana_sched.cluster.node.kubelet_configuration import KubeletConfigurationReader
from cedana_sched.component.folder_watches import shared_folder_watches
from cedana_sched.model.objects.node_interruption import InterruptionKind, InterruptionSource, NodeInterruption

log = structlog.get_logger(__name__)

STATE_FILE: Final = "graceful_node_shutdown_state"
SYSTEM_CRITICAL: Final = 2_000_000_000
"""Priority of `system-cluster-critical`; pods of this group end last, and this agent is one of them."""
_MOST_BYTES: Final = 4096
_GO_ZERO: Final = "0001-01-01T00:00:00Z"
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|ns|s)")


class _State(msgspec.Struct, frozen=True, rename="camel"):
    """The kubelet's file; a time that is not set is Go's zero."""

    start_time: str = _GO_ZERO
    end_time: str = _GO_ZERO


class KubeletShutdown:
    """The shutdown of one node.

    Args:
        folder: the kubelet's directory of files, as this process sees it.
        configuration: of the kubelet: the seconds that its shutdown takes.
        proc: the machine's, for the time of its boot.
    """

    def __init__(self, folder: Path, configuration: KubeletConfigurationReader, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._configuration = configuration
        self._proc = proc
        self._is_read = False
        self._is_announced = False

    def is_in_progress(self) -> bool:
        """Return whether the kubelet is ending the node's pods; reads two small files."""
        try:
            return self._has_begun()
        except (OSError, ValueError, OverflowError) as error:
            log.warning("the kubelet's record of a shutdown cannot be read", error=str(error))
            return False

    def watch(self, now: Now) -> NoticeWatch:
        """Return the watch that reads this shutdown as a notice.

        Args:
            now: the current time, by the API server.
        """

        async def read() -> NodeInterruption | None:
            return await self._read_notice(now)

        return NoticeWatch("shutdown of the node", read, poll_seconds=0.0)

    async def _read_notice(self, now: Now) -> NodeInterruption | None:
        """Return at once the first time, then wait: for the begin of a shutdown, and after it for ever.

        Of a shutdown that has begun before the first time it is unknown how much time is left.
        """
        if self._is_announced:
            await asyncio.Event().wait()
        if self._is_read:
            await self._wait_begin()
            seconds = await asyncio.to_thread(self._read_seconds)
        else:
            self._is_read = True
            if not self.is_in_progress():
                return None
            seconds = None
        self._is_announced = True
        observed = now()
        ends_at = None if seconds is None else observed + timedelta(seconds=seconds)
        return NodeInterruption.from_times(InterruptionSource.KUBELET, InterruptionKind.SHUTDOWN, ends_at, observed)

    async def _wait_begin(self) -> None:
        with shared_folder_watches().open_waiter() as changes:
            changes.add(self._folder, Mask.MOVED_TO)  # the kubelet renames its file into place
            while not self.is_in_progress():
                await changes.wait()

    def _has_begun(self) -> bool:
        """Return whether a shutdown of this boot has begun, and not ended.

        A shutdown that the machine's end has cut off left its file without an end.

        Raises:
            OSError, ValueError, OverflowError: the file is unreadable, or not the kubelet's.
        """
        try:
            with (self._folder / STATE_FILE).open("rb") as file:
                state = msgspec.json.decode(file.read(_MOST_BYTES), type=_State)
        except FileNotFoundError:
            return False
        if state.start_time == _GO_ZERO or state.end_time != _GO_ZERO:
            return False
        return datetime.fromisoformat(state.start_time).timestamp() >= self._read_boot_time()

    def _read_boot_time(self) -> float:
        """Return when the machine has started, in seconds since the epoch by its own clock."""
        (boot,) = (line for line in (self._proc / "stat").read_text().splitlines() if line.startswith("btime "))
        return float(boot.split()[1])

    def _read_seconds(self) -> float | None:
        try:
            return shutdown_seconds(self._configuration.read().content)
        except (OSError, ValueError, yaml.YAMLError) as error:
            log.warning("the time of the node's shutdown is unknown", error=str(error))
            return None


def shutdown_seconds(configuration: Mapping[str, Any]) -> float | None:
    """Return the seconds that each pod without a system priority has at least, from the begin of the shutdown.

    Groups of `shutdownGracePeriodByPodPriority` end one after the other, and one without pods takes no time: so the
    shortest of them counts for all. A pod whose own grace period is shorter has less.

    Returns:
        None if the KubeletConfiguration sets no time.

    Raises:
        ValueError: it is no configuration that a kubelet starts with.
    """
    groups = configuration.get("shutdownGracePeriodByPodPriority")
    if groups:
        try:
            periods = [(int(one["priority"]), float(one["shutdownGracePeriodSeconds"])) for one in groups]
        except (KeyError, TypeError) as error:
            raise ValueError(f"shutdownGracePeriodByPodPriority is no list of groups: {error!r}") from error
        below = [seconds for priority, seconds in periods if priority < SYSTEM_CRITICAL and seconds > 0]
        return min(below, default=None)
    total, critical = (
        _parse_go_duration(str(configuration.get(name, "0s")))
        for name in ("shutdownGracePeriod", "shutdownGracePeriodCriticalPods")
    )
    return total - critical if total > critical else None


def _parse_go_duration(text: str) -> float:
    """Parse a duration of Go's, such as `1m30s`, into seconds.

    Raises:
        ValueError: it is none.
    """
    parts = list(_PART.finditer(text))
    if text == "0":
        return 0.0
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text[:64]!r} is no duration")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
