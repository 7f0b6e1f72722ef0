"""A shutdown of the node is read from the kubelet's own record, and the time that it leaves from its configuration."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cedana_sched.cluster.node.interruptions import shutdown_record
from cedana_sched.cluster.node.interruptions.kubelet_shutdown import STATE_FILE, KubeletShutdown
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch
from cedana_sched.cluster.node.interruptions.shutdown_record import ShutdownRecords
from cedana_sched.cluster.node.kubelet_configuration import KubeletConfigurationReader
from cedana_sched.model.objects.node_interruption import InterruptionKind, InterruptionSource, NodeInterruption
from cedana_sched.runtime_handler.atomic_write import write_atomically

BEGAN = "2026-05-01T12:00:00.123456789Z"
BEGAN_AT = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
NEVER = "0001-01-01T00:00:00Z"
OBSERVED = BEGAN_AT + timedelta(hours=1)
"""By the API server's clock, which is ahead of the machine's."""


class Machine:
    """A machine with a kubelet of no process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._proc = folder / "kubelet", folder / "proc"
        self.folder.mkdir()
        (self._proc / "1/ns").mkdir(parents=True)
        (self._proc / "1/ns/pid").symlink_to("pid:[4026531836]")
        (self._proc / "sys/kernel/random").mkdir(parents=True)
        self.record_path, self.record_on_disk = folder / "state/shutdown.json", folder / "data/shutdown.json"
        self.outlived_seconds = 3600.0
        self.now = OBSERVED
        self.boot()

    def boot(self) -> None:
        (self._proc / "sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        self.start_agent()

    def start_agent(self) -> None:
        configuration = KubeletConfigurationReader(self.folder, self._proc)
        records = ShutdownRecords([self.record_path, self.record_on_disk])
        self.shutdown = KubeletShutdown(
            self.folder, records, configuration, self._proc, outlived_seconds=self.outlived_seconds
        )
        self.shutdown.is_in_progress()

    def configure(self, content: dict[str, Any] | str) -> None:
        (self.folder / "config.yaml").write_text(content if isinstance(content, str) else json.dumps(content))

    def record(self, start: str = BEGAN, end: str = NEVER, text: str | None = None) -> None:
        """As the kubelet does: a file of another name is renamed."""
        written = self.folder / f".tmp-{STATE_FILE}"
        written.write_text(json.dumps({"startTime": start, "endTime": end}) if text is None else text)
        written.rename(self.folder / STATE_FILE)

    def watch(self) -> NoticeWatch:
        return self.shutdown.watch(lambda: self.now)

    async def begin_shutdown(self) -> NodeInterruption:
        """While the agent watches."""
        watch = self.watch()
        assert await next_notice(watch) is None
        assert not self.shutdown.is_in_progress()
        reading = asyncio.create_task(next_notice(watch))
        await asyncio.sleep(0)
        self.record()
        assert self.shutdown.is_in_progress()
        notice = await reading
        assert notice is not None
        return notice


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def next_notice(watch: NoticeWatch) -> NodeInterruption | None:
    return await asyncio.wait_for(watch.read(), 60)


async def test_shutdown_is_a_notice_with_the_time_that_pods_have(machine: Machine) -> None:
    machine.configure({"shutdownGracePeriod": "1m30s", "shutdownGracePeriodCriticalPods": "20s"})
    notice = await machine.begin_shutdown()
    assert (notice.source, notice.kind) == (InterruptionSource.KUBELET, InterruptionKind.SHUTDOWN)
    assert notice.ends_node
    assert notice.ends_at == pytest.approx((OBSERVED + timedelta(seconds=70)).timestamp(), abs=0.01)


async def test_time_that_is_left_of_an_earlier_begin_is_unknown(machine: Machine) -> None:
    machine.configure({"shutdownGracePeriod": "1m30s"})
    machine.record()
    notice = await next_notice(machine.watch())
    assert notice is not None
    assert notice.not_before is None


async def test_agent_that_restarts_announces_the_same_shutdown(machine: Machine) -> None:
    """Else the pods that are left out, and end already, would be planned again."""
    machine.configure({"shutdownGracePeriod": "1m30s"})
    notice = await machine.begin_shutdown()
    mark = machine.shutdown.left_out_mark()
    machine.start_agent()
    assert machine.shutdown.left_out_mark() is None
    assert await next_notice(machine.watch()) == notice
    assert machine.shutdown.left_out_mark() == mark is not None


async def test_shutdown_that_ends_with_its_machine_stays(machine: Machine) -> None:
    machine.record()
    watch = machine.watch()
    assert await next_notice(watch) is not None
    machine.record(end=BEGAN)
    waiting = asyncio.create_task(next_notice(watch))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    assert not machine.shutdown.is_in_progress(), "the kubelet ends containers for other reasons again"


@pytest.fixture
def surviving(machine: Machine) -> Machine:
    """Its agent outlives a shutdown soon."""
    machine.outlived_seconds = 0.05
    machine.start_agent()
    return machine


async def test_shutdown_that_the_agent_outlives_is_withdrawn(surviving: Machine) -> None:
    surviving.record()
    watch = surviving.watch()
    assert await next_notice(watch) is not None
    waiting = asyncio.create_task(next_notice(watch))
    await asyncio.sleep(0.1)
    assert not waiting.done(), "the kubelet still ends pods"
    surviving.record(end=BEGAN)
    assert await waiting is None
    assert surviving.shutdown.left_out_mark() is None


async def test_shutdown_after_one_that_was_called_off_is_another_notice(machine: Machine) -> None:
    machine.configure({"shutdownGracePeriod": "1m30s"})
    watch = machine.watch()
    await next_notice(watch)
    marks = set()
    for begin in (BEGAN, "2026-05-01T12:05:00Z"):
        machine.record(start=begin)
        assert await next_notice(machine.watch()) is not None
        marks.add(machine.shutdown.left_out_mark())
        machine.now += timedelta(minutes=5)
        machine.record(start=begin, end=begin)
    assert len(marks) == 2


async def test_clock_that_is_set_after_the_boot_changes_nothing(machine: Machine) -> None:
    """A shutdown of this boot may seem older than the boot, and one of an earlier boot younger."""
    _cut_off(machine)
    machine.record(start="1970-01-01T00:00:07Z")
    assert machine.shutdown.is_in_progress()
    machine.start_agent()
    assert machine.shutdown.is_in_progress()
    machine.boot()
    assert not machine.shutdown.is_in_progress()


def test_unreadable_memory_of_an_agent_is_said_and_begun_anew(machine: Machine) -> None:
    machine.record_path.write_text("{")
    with capture_logs() as logs:
        machine.start_agent()
    assert [one["event"] for one in logs] == ["the record of announced shutdowns is not readable"]
    machine.record()
    assert machine.shutdown.is_in_progress()


class Disk:
    """Filesystems of which some are full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full: set[Path] = set()
        monkeypatch.setattr(shutdown_record, "write_atomically", self.write)

    def write(self, path: Path, content: bytes) -> None:
        if path in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_atomically(path, content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("is_full", ["data", "state"])
async def test_shutdown_that_began_on_a_full_disk_is_in_progress_for_the_next_agent(
    machine: Machine, disk: Disk, is_full: str
) -> None:
    machine.configure({"shutdownGracePeriod": "1m30s"})
    disk.full = {machine.record_on_disk if is_full == "data" else machine.record_path}
    machine.boot()
    notice = await machine.begin_shutdown()
    machine.start_agent()
    assert machine.shutdown.is_in_progress()
    assert await next_notice(machine.watch()) == notice


async def test_newest_record_counts_when_a_filesystem_is_full_meanwhile(machine: Machine, disk: Disk) -> None:
    machine.configure({"shutdownGracePeriod": "1m30s"})
    disk.full = {machine.record_path}
    notice = await machine.begin_shutdown()
    machine.start_agent()
    assert await next_notice(machine.watch()) == notice


async def test_record_is_written_once_there_is_space(machine: Machine, disk: Disk) -> None:
    disk.full = {machine.record_path, machine.record_on_disk}
    with capture_logs() as logs:
        machine.boot()
        machine.record()
        assert machine.shutdown.is_in_progress(), "it is kept in memory"
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == [
        "the shutdown of the node is not recorded"
    ]
    disk.full.clear()
    assert machine.shutdown.is_in_progress()
    machine.start_agent()
    assert machine.shutdown.is_in_progress()


def _cut_off(machine: Machine) -> None:
    machine.record()
    machine.boot()


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda machine: machine.record(end=BEGAN), id="ended"),
        pytest.param(_cut_off, id="of an earlier boot"),
        pytest.param(lambda machine: machine.record(start=NEVER), id="not begun"),
        pytest.param(lambda machine: machine.record(text="{}"), id="empty"),
    ],
)
async def test_record_of_another_shutdown_is_no_notice(machine: Machine, leave: Callable[[Machine], None]) -> None:
    leave(machine)
    assert await next_notice(machine.watch()) is None
    assert not machine.shutdown.is_in_progress()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"startTime": 5}'])
def test_unreadable_record_is_said_and_no_shutdown(machine: Machine, text: str) -> None:
    machine.record(text=text)
    with capture_logs() as logs:
        assert not machine.shutdown.is_in_progress()
    assert [one["event"] for one in logs] == ["the kubelet's record of a shutdown cannot be read"]


@pytest.mark.parametrize("content", ["[", "shutdownGracePeriod: soon\n", "{}"])
async def test_unknown_time_is_unknown(machine: Machine, content: str) -> None:
    machine.configure(content)
    assert (await machine.begin_shutdown()).not_before is None
