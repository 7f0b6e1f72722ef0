"""Dumps the containers of one frozen workload side by side into one snapshot.

All or nothing: the first that fails stops the others, and all run on. Used by the capture process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from cedana_sched.agent.messages import CaptureRequest
from cedana_sched.agent.runtime import RunningContainer
from cedana_sched.snapshot.dump import Dump, DumpRequest
from cedana_sched.snapshot.freezer import thaw_together
from cedana_sched.snapshot.stream import StreamSink, StreamWriter
from cedana_sched.snapshot.toolchain import Toolchain


class WorkloadDump:
    """One dump of a workload. `run` blocks; `cancel` may be called from another thread at any time."""

    def __init__(self, toolchain: Toolchain, request: CaptureRequest, sink: StreamSink) -> None:
        self._workload = request.workload
        self._sink = sink
        self._dumps = [
            Dump(toolchain, _dump_request(request, tree), _Folder(sink, tree.name))
            for tree in request.workload.containers
        ]

    def cancel(self, why: str) -> None:
        """Make `run` raise DumpError soon, with all processes running on. Harmless after the end."""
        for dump in self._dumps:
            dump.cancel(why)

    def run(self) -> float:
        """Dump all; returns the seconds that it took. The workload stays frozen.

        Raises:
            DumpError: one of them failed, or it was cancelled. The whole workload runs on, and the cause is the
                sink's own exception if there was one.
        """
        began = time.monotonic()
        steps: list[Callable[[], object]] = [dump.run for dump in self._dumps]
        steps += [lambda tree=tree: self._write_notes(tree) for tree in self._workload.containers]  # type: ignore[misc]
        try:
            self._run_all(steps)
        except BaseException:
            thaw_together(self._workload.freezers)
            raise
        return time.monotonic() - began

    def _run_all(self, steps: list[Callable[[], object]]) -> None:
        with ThreadPoolExecutor(len(steps), thread_name_prefix="dump") as pool:
            futures: list[Future[object]] = [pool.submit(step) for step in steps]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failures = [error for future in done if (error := future.exception())]
            if failures:
                self.cancel("another container of the workload could not be dumped")
        if failures:
            raise failures[0]

    def _write_notes(self, tree: RunningContainer) -> None:
        folder = _Folder(self._sink, tree.name)
        for name, text in tree.notes.items():
            writer = folder.open_stream(name)
            writer.write(memoryview(text.encode()))
            writer.close()


class _Folder:
    """A sink whose streams lie in a folder of another's."""

    def __init__(self, sink: StreamSink, name: str) -> None:
        self._sink = sink
        self._name = name

    def open_stream(self, name: str) -> StreamWriter:
        return self._sink.open_stream(f"{self._name}/{name}" if self._name else name)


def _dump_request(request: CaptureRequest, tree: RunningContainer) -> DumpRequest:
    return DumpRequest(
        root_pid=tree.root_pid,
        workdir=Path(request.criu_directory(tree.name)),
        freeze_cgroup=tree.freezer,
        externals=tree.externals,
        root=tree.root,
        ext_unix_sk=tree.ext_unix_sk,
        manage_cgroups=tree.manage_cgroups,
        saves_shared_memory=tree.saves_shared_memory,
        timeout_seconds=request.timeout_seconds,
        launcher=request.launcher,
    )
