"""What is made once: whole or not there, by one at a time, and again when it is damaged."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.cache import cache_dir, digest, exclusive, forget_older, made_once

REPOSITORY = Path(__file__).resolve().parents[3]
HOLDER = """
import asyncio, sys
from tests.cluster.cache import exclusive
async def main():
    async with exclusive("thing"):
        print("held", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_dir()


class Maker:
    """Makes a folder in two steps and counts how often."""

    def __init__(self) -> None:
        self.times = 0
        self.fails = False

    async def __call__(self, partial: Path) -> None:
        self.times += 1
        partial.mkdir()
        (partial / "first").touch()
        await asyncio.to_thread(os.sync)
        if self.fails:
            raise OSError("no space")
        (partial / "last").touch()


async def test_many_who_want_it_at_once_get_one(cache: Path) -> None:
    make = Maker()
    made = await asyncio.gather(*(made_once(cache / "thing", make) for _ in range(3)))
    assert made == [cache / "thing"] * 3
    assert make.times == 1


async def test_a_failure_leaves_nothing_and_the_next_one_makes_it(cache: Path) -> None:
    make = Maker()
    make.fails = True
    with pytest.raises(OSError, match="no space"):
        await made_once(cache / "thing", make)
    assert [path.name for path in cache.iterdir()] == ["locks"]
    make.fails = False
    await made_once(cache / "thing", make)
    assert (cache / "thing" / "last").exists()


async def test_what_a_killed_one_left_is_not_used(cache: Path) -> None:
    (cache / ".thing.partial").mkdir(parents=True)
    (cache / ".thing.partial" / "half").touch()
    await made_once(cache / "thing", Maker())
    assert {path.name for path in (cache / "thing").iterdir()} == {"first", "last"}


async def test_a_damaged_one_is_replaced(cache: Path) -> None:
    make = Maker()
    await made_once(cache / "thing", make)
    (cache / "thing" / "last").unlink()
    await made_once(cache / "thing", make, is_whole=lambda path: (path / "last").exists())
    assert (cache / "thing" / "last").exists()
    assert make.times == 2


async def test_a_killed_holder_gives_the_lock_back() -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"

    async def take() -> None:
        async with exclusive("thing"):
            pass

    waiting = asyncio.create_task(take())
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    holder.send_signal(signal.SIGKILL)
    await holder.wait()
    await asyncio.wait_for(waiting, 60)


async def test_a_cancelled_wait_leaves_the_lock_to_others() -> None:
    async with exclusive("thing"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), exclusive("thing"):
                pytest.fail("two hold it")
    async with asyncio.timeout(60), exclusive("thing"):
        pass


def test_a_digest_tells_inputs_apart() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert len({digest("a", "b"), digest("ab"), digest(["a", "b"]), digest("b", "a")}) == 4


def test_the_newest_of_a_name_stay(cache: Path) -> None:
    cache.mkdir()
    for age, name in enumerate(["agent-" + str(number) * 16 + ".tar" for number in range(5)]):
        (cache / name).touch()
        os.utime(cache / name, (100 - age, 100 - age))
    (cache / ("agent-extra-" + "0" * 16 + ".tar")).touch()
    forget_older(cache / ("agent-" + "4" * 16 + ".tar"), "agent")
    kept = ["agent-" + digit * 16 + ".tar" for digit in "014"]
    assert sorted(path.name for path in cache.iterdir()) == [*kept, "agent-extra-" + "0" * 16 + ".tar"]
