"""All who wait for files share one inotify instance, and hear what they would have heard of one of their own."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asyncinotify import Event, Inotify, Mask
from structlog.testing import capture_logs

from cedana_sched.component import folder_watches as module
from cedana_sched.component.folder_watches import FolderChanges, shared_folder_watches


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def instances() -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]  # that of the look is gone
    return sum(str(link.readlink()) == "anon_inode:inotify" for link in links)


async def hears(changes: FolderChanges, seconds: float = 60) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await changes.wait()
    except TimeoutError:
        return False
    return True


async def test_one_instance_serves_all_and_lasts_as_long_as_it_is_kept(tmp_path: Path) -> None:
    before = instances()
    with shared_folder_watches().keep_open():
        assert instances() == before + 1
        with shared_folder_watches().open_waiter() as first, shared_folder_watches().open_waiter() as second:
            first.add(tmp_path, Mask.CREATE)
            second.add(tmp_path, Mask.CREATE)
            assert instances() == before + 1
        assert instances() == before + 1
    assert instances() == before
    with shared_folder_watches().open_waiter() as alone:
        alone.add(tmp_path, Mask.CREATE)
        assert instances() == before + 1
    assert instances() == before


async def test_each_hears_what_it_wants_of_a_folder_that_others_watch_too(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with shared_folder_watches().open_waiter() as made, shared_folder_watches().open_waiter() as gone:
        made.add(tmp_path, Mask.CREATE)
        gone.add(tmp_path, Mask.DELETE)
        (tmp_path / "new").touch()
        assert await hears(made)
        assert not await hears(gone, 0.05)
        (tmp_path / "old").unlink()
        assert await hears(gone)
        assert not await hears(made, 0.05)
        with shared_folder_watches().open_waiter() as brief:
            brief.add(tmp_path, Mask.CREATE)
        made.remove(tmp_path)
        (tmp_path / "new").unlink()
        assert await hears(gone), "what others give up is still watched for who is left"


async def test_two_names_may_lead_to_one_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with shared_folder_watches().open_waiter() as changes:
        changes.add(tmp_path / "folder", Mask.CREATE)
        changes.add(tmp_path / "link", Mask.CREATE)
        changes.remove(tmp_path / "folder")
        (tmp_path / "folder/new").touch()
        assert await hears(changes)


async def test_what_happens_before_the_wait_is_not_missed(tmp_path: Path) -> None:
    with shared_folder_watches().open_waiter() as changes:
        changes.add(tmp_path, Mask.CREATE)
        (tmp_path / "new").touch()
        await asyncio.sleep(0.05)
        assert await hears(changes)
        assert not await hears(changes, 0.05)


@pytest.mark.usefixtures("quick")
async def test_folder_that_goes_is_told_of_and_watched_again_when_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with shared_folder_watches().open_waiter() as changes, shared_folder_watches().open_waiter() as other:
        changes.add(folder, Mask.CREATE)
        other.add(folder, Mask.CREATE)
        folder.rmdir()
        assert await hears(changes)
        assert await hears(other)
        assert await hears(changes), "it is looked for"
        folder.mkdir()
        assert await hears(changes)
        while folder not in changes._watched:
            assert await hears(changes)
        (folder / "new").touch()
        assert await hears(changes)


async def test_folder_that_is_not_there_cannot_be_added(tmp_path: Path) -> None:
    with shared_folder_watches().open_waiter() as changes, pytest.raises(FileNotFoundError):
        changes.add(tmp_path / "none", Mask.CREATE)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("missing", [errno.EMFILE, errno.ENOSPC], ids=["instance", "watch"])
async def test_who_cannot_watch_looks_until_he_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    refusals = 3

    def refuse(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise OSError(missing, os.strerror(missing))
            return real(*arguments, **named)

        return called

    if missing == errno.EMFILE:
        monkeypatch.setattr(module, "Inotify", refuse(Inotify))
    else:
        monkeypatch.setattr(Inotify, "add_watch", refuse(Inotify.add_watch))
    with capture_logs() as said, shared_folder_watches().open_waiter() as changes:
        changes.add(tmp_path, Mask.CREATE)
        while not changes._watched:
            assert await hears(changes)
        assert refusals == 0
        assert not await hears(changes, 0.1)
        (tmp_path / "new").touch()
        assert await hears(changes)
    assert [line["log_level"] for line in said] == ["warning"]


@pytest.mark.usefixtures("quick")
async def test_events_that_are_dropped_make_everybody_look(tmp_path: Path) -> None:
    """One pod may make so many in its own volume that the kernel drops those of others."""
    length = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for name in ("noisy", "quiet"):
        (tmp_path / name).mkdir()
    with shared_folder_watches().open_waiter() as noisy, shared_folder_watches().open_waiter() as quiet:
        noisy.add(tmp_path / "noisy", Mask.MOVED_TO | Mask.MOVED_FROM)
        quiet.add(tmp_path / "quiet", Mask.CREATE)
        before, after = tmp_path / "noisy/a", tmp_path / "noisy/b"
        before.touch()
        for _ in range(length // 2 + 1):
            before.rename(after)
            before, after = after, before
        (tmp_path / "quiet/new").touch()
        assert await hears(quiet)
        assert await hears(noisy)


async def test_who_makes_events_without_end_does_not_take_the_whole_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS_AT_ONCE", 10)
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    handled: list[Event] = []
    dispatch = module.FolderWatches._dispatch

    def counted(self: module.FolderWatches, event: Event) -> None:
        handled.append(event)
        dispatch(self, event)

    monkeypatch.setattr(module.FolderWatches, "_dispatch", counted)
    with shared_folder_watches().open_waiter() as changes:
        changes.add(tmp_path, Mask.CREATE)
        for number in range(200):
            (tmp_path / str(number)).touch()
        most = 0
        async with asyncio.timeout(60):
            while len(handled) < 200:
                before = len(handled)
                await asyncio.sleep(0)
                most = max(most, len(handled) - before)
        assert 0 < most <= 20
        assert await hears(changes)
