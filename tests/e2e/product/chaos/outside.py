"""What stands beside the cluster, on its switch, and lives through whatever befalls it: the store, the collector."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncinotify
import tenacity

from tests.cluster.binaries.build import ensure
from tests.cluster.cluster import Cluster
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product.chaos.program import Word
from tests.e2e.product.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

_HERE = Path(__file__).parent
STORE_PORT, GATE_PORT, COLLECTOR_PORT = 7170, 7171, 7172


class Outside:
    """Where the programs write and what they obey.

    Args:
        host: of all three; an address that pods and nodes reach.
        folder: of their files.
        words: what the pods say goes there.
    """

    def __init__(self, host: str, folder: Path, words: Path) -> None:
        self.host = host
        self._folder = folder
        self._said = words
        self._words: list[Word] = []
        self._offset = 0

    @property
    def collector(self) -> tuple[str, int]:
        """Where pods send their words."""
        return self.host, COLLECTOR_PORT

    @property
    def s3(self) -> S3Server:
        """The store, as the product is to use it: behind the gate."""
        return S3Server(endpoint=f"http://{self.host}:{GATE_PORT}")

    def words(self) -> Sequence[Word]:
        """All that the pods have said so far, in the order in which it came."""
        with self._said.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._offset += len(line)
                self._words.append(Word.parse(line.decode().rstrip("\n")))
        return self._words

    async def wait_for_words(self, condition: Callable[[Sequence[Word]], bool], *, within: float) -> None:
        """Wait until what has been said satisfies a condition.

        Raises:
            TimeoutError: it did not in time.
        """
        with asyncinotify.Inotify() as changes:
            changes.add_watch(self._said, asyncinotify.Mask.MODIFY)
            async with asyncio.timeout(patient(within)):
                while not condition(self.words()):
                    await changes.get()

    def behave(self, mode: str) -> None:
        """Let the gate before the store behave in this way from now on; see `store_gate`."""
        fresh = self._file("mode.new")
        fresh.write_text(mode)
        fresh.replace(self._file("mode"))

    def _file(self, name: str) -> Path:
        return self._folder / name


@asynccontextmanager
async def running(cluster: Cluster, folder: Path, words: Path, steps: Steps) -> AsyncIterator[Outside]:
    """A store with an empty bucket, the gate before it and the collector; gone at the end."""
    binaries = await ensure("versitygw", steps=steps)
    outside = Outside(str(cluster.place.address), folder, words)
    (folder / "objects" / BUCKET).mkdir(parents=True)
    outside.behave("pass")
    words.write_bytes(b"")
    host, python = outside.host, sys.executable
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    store = (binaries.program("versitygw"), "--quiet", "--port", f"{host}:{STORE_PORT}", "posix", folder / "objects")
    gate = (python, _HERE / "store_gate.py", host, GATE_PORT, STORE_PORT, folder / "mode")
    collector = (python, _HERE / "collector.py", host, COLLECTOR_PORT, words)
    async with (
        _on_the_switch(cluster, folder / "store.log", store, keys),
        _on_the_switch(cluster, folder / "gate.log", gate),
        _on_the_switch(cluster, folder / "collector.log", collector),
    ):
        await _wait_until_ready(folder / "gate.log")
        await _wait_until_ready(folder / "collector.log")
        yield outside


@asynccontextmanager
async def _on_the_switch(
    cluster: Cluster, log: Path, command: tuple[object, ...], environment: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", cluster.place.namespace), *map(str, command),
            env={**os.environ, **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _NotReadyError(Exception):
    pass


@tenacity.retry(
    wait=tenacity.wait_fixed(0.05),
    stop=tenacity.stop_after_delay(30),
    retry=tenacity.retry_if_exception_type(_NotReadyError),
    reraise=True,
)
async def _wait_until_ready(log: Path) -> None:
    said = log.read_text()
    if not said.startswith("ready"):
        raise _NotReadyError(said)
