"""An engine made of views: the real client and command line talk to it over a real unix socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web

from cedana_sched.local.client import SOCKET_NAME
from cedana_sched.local.views import (
    Change,
    CheckpointView,
    EngineView,
    EventView,
    GroupView,
    JobView,
    Problem,
    RunView,
    Submission,
)

NOW = 1_700_000_000.0


def a_job(**changes: object) -> JobView:
    """A running job; `changes` replace its fields."""
    job = JobView(
        uid="4f6c1d2e9a7b",
        name="md",
        namespace="default",
        id="md-run",
        group="bio",
        phase="Running",
        why="",
        argv=("gmx", "mdrun", "-v"),
        priority=0,
        cpus=2.0,
        memory_bytes=2 << 30,
        replicas=1,
        submitted_at=NOW,
        started_at=NOW + 1,
        ended_at=None,
        preemptions=1,
        work_saved_seconds=75.0,
        exit_code=None,
        signal=None,
        stdout="/nowhere/stdout",
        stderr="/nowhere/stderr",
        runs=(
            RunView("r1", 0, NOW + 1, NOW + 76, None, None, None, "SIGKILL"),
            RunView("r2", 0, NOW + 100, None, "default/md-run/0/main@1", None, None, None),
        ),
        checkpoint=CheckpointView(
            uid="c1",
            step="Ready",
            phase="Ready",
            reason="Preempted",
            preemptor="ml/train",
            created_at=NOW + 75,
            deadline=NOW + 675,
            frozen_at=NOW + 75.02,
            committed_at=NOW + 75.4,
            finished_at=NOW + 75.5,
            snapshot="default/md-run/0/main@1",
            read_bytes=300 << 20,
            zero_bytes=100 << 20,
            reused_bytes=0,
            stored_bytes=120 << 20,
        ),
    )
    return msgspec.structs.replace(job, **changes)


AN_ENGINE = EngineView(
    version="0.1.0",
    pid=4711,
    started_at=NOW,
    state_directory="/var/lib/cedana-sched",
    store="folder /var/lib/cedana-sched/store",
    criu="4.2.1",
    capacity_cpus=2.0,
    capacity_memory_bytes=8 << 30,
    groups=(GroupView("bio", 1.0, 4 << 30, 2.0, 2 << 30, 1.0, 1.0, 0.5, 1, 0),),
)


class FakeEngine:
    """Serves `jobs` and whatever the test puts later; `problem` is the answer to the next change that is asked for."""

    def __init__(self, state_directory: Path) -> None:
        self.state_directory = state_directory
        self.jobs: dict[str, JobView] = {}
        self.view = AN_ENGINE
        self.requests: list[tuple[str, object]] = []
        self.problem: tuple[int, Problem] | None = None
        self.on_action: Callable[[str, JobView], JobView] = lambda _, job: job
        self.on_watch: Callable[[], None] = lambda: None
        self._watchers: set[asyncio.Queue[Change | None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake engine", daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def put(self, job: JobView) -> None:
        self.jobs[job.uid] = job
        self._tell(Change(job=job))

    def say(self, event: EventView) -> None:
        self._tell(Change(event=event))

    def hang_up(self) -> None:
        """End every watch stream, as a stopping engine does."""
        self._tell(None)

    def _tell(self, change: Change | None) -> None:
        def tell() -> None:
            for queue in self._watchers:
                queue.put_nowait(change)

        self._loop.call_soon_threadsafe(tell)

    async def _serve(self) -> None:
        server = web.Application()
        server.add_routes([
            web.get("/v1/engine", self._engine),
            web.get("/v1/jobs", self._list),
            web.post("/v1/jobs", self._submit),
            web.get("/v1/jobs/{key}", self._job),
            web.post("/v1/jobs/{key}/{action}", self._act),
            web.get("/v1/watch", self._watch),
        ])  # fmt: skip
        self._runner = web.AppRunner(server, shutdown_timeout=0)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.state_directory / SOCKET_NAME)).start()

    async def _close(self) -> None:
        for queue in self._watchers:
            queue.put_nowait(None)
        await self._runner.cleanup()

    async def _engine(self, _: web.Request) -> web.Response:
        return _json(self.view)

    async def _list(self, _: web.Request) -> web.Response:
        return _json(list(self.jobs.values()))

    async def _submit(self, request: web.Request) -> web.Response:
        submission = msgspec.json.decode(await request.read(), type=Submission)
        self.requests.append(("submit", submission))
        if self.problem:
            return _json(self.problem[1], self.problem[0])
        job = a_job(uid="new1", name=submission.name or submission.argv[0], argv=submission.argv, phase="Queued")
        self.put(job)
        return _json(job)

    def _find(self, key: str) -> JobView | None:
        keys = (key,)
        return next((job for job in self.jobs.values() if {job.uid, job.name, job.id} & set(keys)), None)

    async def _job(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        job = self._find(key)
        return (
            _json(job) if job else _json(Problem(f"job: {key!r} does not exist", "see ps", "job", "NotFoundError"), 404)
        )

    async def _act(self, request: web.Request) -> web.Response:
        action, key = request.match_info["action"], request.match_info["key"]
        body = await request.read()
        self.requests.append((action, msgspec.json.decode(body) if body else None))
        job = self._find(key)
        if job is None:
            return _json(Problem(f"job: {key!r} does not exist", "see ps", "job", "NotFoundError"), 404)
        if self.problem:
            return _json(self.problem[1], self.problem[0])
        changed = await asyncio.to_thread(self.on_action, action, job)
        self.put(changed)
        return _json(changed)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        for job in self.jobs.values():
            queue.put_nowait(Change(job=job))
        self._watchers.add(queue)
        self.on_watch()
        while (change := await queue.get()) is not None:
            await response.write(msgspec.json.encode(change) + b"\n")
        self._watchers.discard(queue)
        return response


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
