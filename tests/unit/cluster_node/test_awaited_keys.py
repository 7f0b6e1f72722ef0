"""An agent that comes before its keys waits for them, and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.cluster.node.keys import wait_for_keys
from cedana_sched.service import watches as watching
from cedana_sched.store.sealing import key_file


@pytest.fixture(autouse=True)
def nothing_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told hears of it; who looks would find it by chance."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 3600.0)


class Mount:
    """A Secret's volume, as the kubelet writes it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys"
        self._folder = folder
        self._turn = 0

    def renew(self, text: str | None) -> None:
        self._turn += 1
        payload = self._folder / f"..{self._turn}"
        payload.mkdir()
        if text is not None:
            (payload / "keys").touch(mode=0o400)
            (payload / "keys").write_text(text)
        (self._folder / "..data_tmp").symlink_to(payload.name)
        (self._folder / "..data_tmp").rename(self._folder / "..data")
        if text is not None and not self.file.is_symlink():
            self.file.symlink_to("..data/keys")


async def test_keys_that_come_later_are_waited_for_in_words(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    mount.renew(None)
    told: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        waiting = group.create_task(wait_for_keys(mount.file, told.put_nowait))
        assert "cannot be read" in await told.get()
        mount.renew("# nothing yet\n")
        assert "holds no key" in await told.get()
        assert not waiting.done()
        mount.renew(key_file.new_text()[1])


async def test_keys_that_are_there_are_not_waited_for(tmp_path: Path) -> None:
    key_file.create(tmp_path / "keys")
    told: list[str] = []
    await asyncio.wait_for(wait_for_keys(tmp_path / "keys", told.append), 20)
    assert told == []
