"""A real engine, as a process of its own, on a state directory and a store of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cedana_sched.local.client import EngineClient, EngineUnreachableError
from cedana_sched.local.views import Change, JobView, Submission
from cedana_sched.snapshot.criu_toolchain import Toolchain
from tests.leftovers import mounts_below
from tests.processes import naming

TIMEOUT_SECONDS = 60.0
MORTAL = Path(__file__).with_name("mortal.py")
ONE_GROUP = """
[[groups]]
name = "bio"
nominalQuota = { cpu = 2, memory = "8Gi" }
preemption = { withinClusterQueue = "LowerPriority" }
"""


class Engine:
    """One engine; `kill` and `start` it as often as you like. Every wait is a watch, and bounded."""

    def __init__(
        self,
        home: Path,
        configuration: str = ONE_GROUP,
        store: str | None = None,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.home = home
        self.state = home / "state"
        self.store = store or str(home / "store")
        self._options = options
        self.log = home / "engine.log"
        self._configuration = home / "groups.toml"
        self._configuration.write_text(configuration)
        self._process: Process | None = None
        self._environment = os.environ | (environment or {})
        self._instant = home / "instant"
        self._is_mortal = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and return when it answers."""
        program = [str(MORTAL), str(self._instant)] if self._is_mortal else ["-m", "cedana_sched"]
        words = ["--state-dir", str(self.state), "engine", "run", "--config", str(self._configuration)]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *program, *words, "--store", self.store, *self._options,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
            )  # fmt: skip
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                with contextlib.suppress(EngineUnreachableError):
                    async with self.client() as client:
                        await client.engine()
                        return
                if self._process.returncode is not None:
                    pytest.fail(f"the engine ended at its start:\n{self.log.read_text()[-3000:]}")
                await asyncio.sleep(0.05)  # it has nothing to watch before its socket is there

    async def make_mortal(self) -> None:
        """Start it anew, as one that can `die_at` an instant; see `mortal`."""
        await self.stop()
        self._is_mortal = True
        await self.start()

    def die_at(self, instant: str) -> None:
        self._instant.write_text(instant)

    async def died(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait for the death of an engine that was told to die."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                assert await self._process.wait() == -signal.SIGKILL
        except TimeoutError:
            pytest.fail(f"it lives\n{self.log.read_text()[-3000:]}")

    async def kill(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer would."""
        await self._end(signal.SIGKILL)

    async def stop(self, seconds: float = TIMEOUT_SECONDS) -> None:
        await self._end(signal.SIGTERM, seconds)

    async def ended(self) -> int:
        """The exit code of an engine that ends by itself."""
        assert self._process is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._process.wait()

    async def _end(self, number: signal.Signals, seconds: float = TIMEOUT_SECONDS) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
            async with asyncio.timeout(seconds):
                await process.wait()

    def client(self) -> EngineClient:
        return EngineClient(self.state)

    async def submit(self, *argv: str, **fields: object) -> JobView:
        async with self.client() as client:
            return await client.submit(Submission(argv=argv, **({"group": "bio"} | fields)))  # type: ignore[arg-type]

    async def job(self, key: str) -> JobView:
        async with self.client() as client:
            return await client.job(key)

    async def until(self, key: str, wanted: Callable[[JobView], bool], seconds: float = TIMEOUT_SECONDS) -> JobView:
        """Watch until a job (by uid) is as wanted."""
        last: Change | None = None
        try:
            async with asyncio.timeout(seconds), self.client() as client:
                async for change in client.watch():
                    if change.job is not None and change.job.uid == key:
                        last = change
                        if wanted(change.job):
                            return change.job
        except TimeoutError:
            pytest.fail(f"waited {seconds} s in vain; last seen: {last}\n{self.log.read_text()[-3000:]}")
        pytest.fail(f"the engine went away\n{self.log.read_text()[-3000:]}")

    async def until_phase(self, key: str, *phases: str, seconds: float = TIMEOUT_SECONDS) -> JobView:
        return await self.until(key, lambda job: job.phase in phases, seconds)

    async def end(self) -> None:
        """End all jobs and the engine, started again if it was killed: nothing of the test stays behind."""
        if self._process is None or self._process.returncode is not None:
            await self.start()
        await self.end_all()
        await self.stop()

    async def end_all(self) -> None:
        async with self.client() as client:
            for job in await client.jobs():
                if job.phase not in {"Succeeded", "Failed", "Cancelled"}:
                    await client.cancel(job.uid)
        for uid in jobs_of(self):
            await self.until_phase(uid, "Succeeded", "Failed", "Cancelled")


def jobs_of(engine: Engine) -> list[str]:
    """Uids of the jobs that have output below the engine's state directory."""
    output = engine.state / "output"
    return sorted(path.name for path in output.iterdir()) if output.exists() else []


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path leaves room for the name of a unix socket (107 characters in all)."""
    return tmp_path_factory.mktemp("e")


@pytest.fixture
async def engine(home: Path, toolchain: Toolchain) -> AsyncIterator[Engine]:  # it must be there
    engine = Engine(home)
    await engine.start()
    yield engine
    await engine.end()


@pytest.fixture(autouse=True)
def _nothing_stays_behind(home: Path) -> Iterator[None]:
    yield
    assert mounts_below(home) == []
    assert naming(home) == []


def printed(job: JobView) -> list[str]:
    """What the job has written to its standard output, by lines."""
    return Path(job.stdout).read_text().splitlines()
