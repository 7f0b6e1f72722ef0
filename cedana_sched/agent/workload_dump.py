"""Dumps one frozen workload into one snapshot: its containers in parallel, and the files that are deleted with it.

    pages-1.img, …               CRIU's images of a workload that is one process tree
    CONTAINER/pages-1.img, …     those of one container among several
    CONTAINER/rootfs.tar         its changes to its root filesystem
    CONTAINER/descriptors.json   what the restoring runtime reads beside the images
    CONTAINER/volume-files.json  the files of volumes that its processes have open
    volumes/NAME.tar             a volume of the workload

All or nothing: the first step that fails stops the others, and all containers are thawed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from cedana_sched.agent.capture_messages import CaptureRequest
from cedana_sched.agent.workload_runtime import RunningContainer
from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.dump import Dump, DumpRequest
from cedana_sched.snapshot.folder_archive import write_archive
from cedana_sched.snapshot.freezer import pids_in_cgroup, thaw_together
from cedana_sched.snapshot.image_stream_receiver import ImageSink, ImageWriter
from cedana_sched.snapshot.loopback_blocking import block_loopback_tcp, shared_namespaces, unblock_loopback_tcp
from cedana_sched.snapshot.undelivered_tcp_data import await_delivery

LAYER = "rootfs.tar"
VOLUMES = "volumes"
_THREADS = 8


class WorkloadDump:
    """One dump of a workload. `run` blocks; `cancel` may be called from another thread at any time."""

    def __init__(self, toolchain: Toolchain, request: CaptureRequest, sink: ImageSink) -> None:
        self._toolchain = toolchain
        self._workload = request.workload
        self._sink = sink
        self._stopped = ""
        self._at_work = 0
        self._lock = threading.Lock()
        self._dumps = [
            Dump(toolchain, _dump_request(request, tree), _FolderSink(sink, tree.name))
            for tree in request.workload.containers
        ]

    def cancel(self, why: str) -> None:
        """Make `run` raise DumpError soon, with all processes thawed. No effect after the end."""
        self._stopped = self._stopped or why
        for dump in self._dumps:
            dump.cancel(why)

    @property
    def criu_is_at_work(self) -> bool:
        """Whether a CRIU runs; a running CRIU is watched by the code that has started it."""
        return self._at_work > 0

    def run(self) -> float:
        """Dump all; return the duration in seconds. The workload stays frozen.

        Raises:
            DumpError: a part failed or is refused, or the dump was cancelled. The whole workload is thawed, and the
                cause is the sink's own exception if there was one.
            OSError, StoreError: the files beside the processes cannot be read or stored; likewise.
        """
        began = time.monotonic()
        try:
            self._require_restorable()
            await_delivery({pid for cgroup in self._workload.freezer_cgroups for pid in pids_in_cgroup(cgroup)})
            with self._hold_connections():
                self._run_all(self._dump_steps())
        except BaseException:
            thaw_together(self._workload.freezer_cgroups)
            raise
        return time.monotonic() - began

    def _require_restorable(self) -> None:
        for tree in self._workload.containers:
            if tree.refusal is not None:
                raise DumpError(tree.refusal.why, remedy=tree.refusal.remedy)

    @contextlib.contextmanager
    def _hold_connections(self) -> Iterator[None]:
        """Hold connections between containers; see `loopback_blocking`."""
        namespaces = shared_namespaces(tree.root_pid for tree in self._workload.containers)
        try:
            for namespace in namespaces:
                block_loopback_tcp(self._toolchain, namespace)
            yield
        finally:
            for namespace in namespaces:
                unblock_loopback_tcp(self._toolchain, namespace)

    def _dump_steps(self) -> list[Callable[[], object]]:
        steps: list[Callable[[], object]] = [partial(self._dump, dump) for dump in self._dumps]
        for tree in self._workload.containers:
            folder = _FolderSink(self._sink, tree.name)
            steps += [partial(self._write_note, folder, name, text) for name, text in tree.notes.items()]
            if tree.changes:
                steps.append(partial(self._archive, tree.changes, folder, LAYER))
        volumes = _FolderSink(self._sink, VOLUMES)
        steps += [partial(self._archive, path, volumes, f"{name}.tar") for name, path in self._workload.volumes.items()]
        return steps

    def _run_all(self, steps: list[Callable[[], object]]) -> None:
        """Run all steps in parallel; CRIU's steps come first, so that none of them waits for a thread."""
        with ThreadPoolExecutor(len(self._dumps) + _THREADS, thread_name_prefix="dump") as pool:
            futures = [pool.submit(step) for step in steps]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failures = [error for future in done if (error := future.exception())]
            if failures:
                pool.shutdown(wait=False, cancel_futures=True)
                self.cancel("another part of the workload could not be dumped")
        if failures:
            raise failures[0]

    def _dump(self, dump: Dump) -> None:
        with self._lock:
            self._at_work += 1
        try:
            dump.run()
        finally:
            with self._lock:
                self._at_work -= 1

    @staticmethod
    def _write_note(folder: ImageSink, name: str, text: str) -> None:
        stream = folder.open_stream(name)
        stream.write(memoryview(text.encode()))
        stream.close()

    def _archive(self, path: Path, folder: ImageSink, name: str) -> None:
        write_archive(path, _StoppableStream(folder.open_stream(name), lambda: self._stopped))


class _FolderSink:
    """A sink whose streams are in a folder of another sink."""

    def __init__(self, sink: ImageSink, name: str) -> None:
        self._sink = sink
        self._name = name

    def open_stream(self, name: str) -> ImageWriter:
        return self._sink.open_stream(f"{self._name}/{name}" if self._name else name)


class _StoppableStream:
    """A stream that rejects writes once there is a reason."""

    def __init__(self, stream: ImageWriter, why: Callable[[], str]) -> None:
        self._stream = stream
        self._why = why
        self.close = stream.close

    def write(self, data: memoryview) -> None:
        if why := self._why():
            raise DumpError(why, remedy="the processes run on")
        self._stream.write(data)


def _dump_request(request: CaptureRequest, tree: RunningContainer) -> DumpRequest:
    return DumpRequest(
        root_pid=tree.root_pid,
        workdir=request.criu_directory(tree.name),
        freeze_cgroup=tree.freezer,
        externals=tree.externals,
        root=tree.root,
        ext_unix_sk=tree.ext_unix_sk,
        has_outside_master=tree.has_outside_master,
        manage_cgroups=tree.manage_cgroups,
        saves_shared_memory=tree.saves_shared_memory,
        timeout_seconds=request.timeout_seconds,
        stall_seconds=request.stall_seconds,
        launcher=request.launcher,
    )
