"""The test cluster's programs: built from their modules when something needs them, and kept.

Called by the control plane, the nodes, the add-ons and the S3 server of the tests; `python -m tests.cluster.binaries`
builds by hand.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.binaries import entry
from tests.cluster.binaries.catalog import MODULES, TOOLS, Tool
from tests.cluster.binaries.failures import explain
from tests.cluster.binaries.go import FLAGS, Go, find_go
from tests.cluster.cache import cache_dir, digest, made_once
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps

_BUILD_MEMORY = 4 << 30
"""What linking Kubernetes takes at its height beside the compilers; others need less."""
_LAYOUT = 1  # of an entry in the cache; one laid by an older state of this module is made again


@dataclass(frozen=True)
class Binaries:
    """Tools that are built; `folders` has the place of each."""

    tools: Mapping[str, Tool]
    folders: Mapping[str, Path]

    def program(self, name: str) -> Path:
        """Return the path of a program, such as "kubelet", of one of these tools."""
        for tool, folder in self.folders.items():
            if name in self.tools[tool].programs:
                return folder / "bin" / name
        raise KeyError(f"program {name!r} is of none of {', '.join(self.folders)}")

    def files(self, tool: str, path: str) -> Path:
        """Return a file or folder that was kept of a tool's module, such as "charts/kueue"."""
        found = self.folders[tool] / "files" / path
        if not found.exists():
            raise KeyError(f"{path!r} of {tool} is not kept: add it to tests/cluster/binaries/catalog.py")
        return found


async def ensure(*names: str, steps: Steps, tools: Mapping[str, Tool] = TOOLS, modules: Path = MODULES) -> Binaries:
    """Return these tools, built first where they are missing or damaged; several at once where memory allows.

    Args:
        names: tools, such as "kubernetes", "etcd".
        steps: told of each build; of nothing when all is there.
        tools: what the names mean.
        modules: where the folder of each tool's module is.

    Raises:
        ClusterError: Go is missing, or a build failed; the log is kept, and nothing else of it.
    """
    if unknown := sorted(set(names) - set(tools)):
        raise ClusterError(f"there is no tool {unknown[0]!r}", remedy=f"take one of {', '.join(tools)}")
    go = await find_go()
    turns = asyncio.Semaphore(_builds_at_once())
    builds = {name: _Build(tools[name], modules / name, go, turns, steps) for name in names}
    try:
        async with asyncio.TaskGroup() as group:
            made = {name: group.create_task(build.made(), name=f"build {name}") for name, build in builds.items()}
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others were cancelled because of it
    return Binaries(tools, {name: task.result() for name, task in made.items()})


def ensure_blocking(*names: str) -> Binaries:
    """Like `ensure`, for callers that are not asynchronous themselves, whether or not a loop runs in their thread."""
    results: list[Binaries | BaseException] = []

    def work() -> None:
        try:
            results.append(asyncio.run(ensure(*names, steps=Steps())))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            results.append(error)

    thread = threading.Thread(target=work, name="build binaries")
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@dataclass(frozen=True)
class _Build:
    tool: Tool
    module: Path
    go: Go
    turns: asyncio.Semaphore
    steps: Steps

    async def made(self) -> Path:
        target = cache_dir() / "bin" / f"{self.tool.name}-{self._version().removeprefix('v')}-{self._digest()}"
        try:
            return await made_once(target, self._make, is_whole=entry.is_intact)
        except OSError as error:
            raise ClusterError(
                f"building {self.tool.name} failed: {error}", remedy=f"see to the disk that {target.parent} is on"
            ) from error

    def _version(self) -> str:
        required = re.search(
            rf"^\s*(?:require )?{re.escape(self.tool.module)} (v\S+)", self._text("go.mod"), re.MULTILINE
        )
        if required is None:
            raise ClusterError(
                f"{self.module / 'go.mod'} does not require {self.tool.module}",
                remedy=f"run `go get {self.tool.module}@VERSION` there",
            )
        return required[1]

    def _digest(self) -> str:
        tool = self.tool
        made_of = [_LAYOUT, self._text("go.mod"), self._text("go.sum"), self._linker(), FLAGS, self.go.family]
        return digest(*made_of, dict(tool.programs), tool.files)

    def _text(self, name: str) -> str:
        path = self.module / name
        if not path.exists():
            raise ClusterError(f"{path} is missing", remedy="take it from version control, or run `go mod tidy` there")
        return path.read_text()

    def _log(self) -> Path:
        return cache_dir() / "logs" / f"build-{self.tool.name}.log"

    def _linker(self) -> str:
        version = self._version()
        major, minor, *_ = version.removeprefix("v").split(".")
        words = {"version": version, "major": major, "minor": minor}
        stamps = (f"-X {name}={value.format(**words)}" for name, value in self.tool.stamps.items())
        return " ".join(["-s -w", *stamps])

    async def _make(self, folder: Path) -> None:
        async with self.turns:
            began = time.monotonic()
            what = f"{', '.join(self.tool.programs)} {self._version()}"
            self.steps.say(f"Building {what}, which takes minutes where Go's cache is empty (log: {self._log()})")
            with self.steps.step(f"Build {what}"):
                await self._build_programs(folder)
                if self.tool.files:
                    await self._keep_files(folder / "files")
        seconds = round(time.monotonic() - began, 1)
        facts = {"tool": self.tool.name, "version": self._version(), "go": self.go.family, "seconds": seconds}
        await asyncio.to_thread(entry.seal, folder, facts)

    async def _build_programs(self, folder: Path) -> None:
        built, scratch = folder / "bin", folder / "scratch"
        for each in (built, scratch):
            each.mkdir(parents=True)
        log = self._log()
        packages = tuple(self.tool.programs.values())
        status = await self.go.build(self.module, packages, self._linker(), built, log, scratch=scratch)
        if status != 0:
            failure = explain(log.read_text(errors="replace"), status)
            raise ClusterError(f"building {self.tool.name} failed: {failure.reason}", remedy=failure.remedy, log=log)
        for name, package in self.tool.programs.items():
            (built / _name_by_go(package)).rename(built / name)
        await asyncio.to_thread(shutil.rmtree, scratch)

    async def _keep_files(self, folder: Path) -> None:
        sources = await self.go.module_folder(self.module, self.tool.module)
        for path in self.tool.files:
            await asyncio.to_thread(_copy, sources / path, folder / path)


def _builds_at_once() -> int:
    """As many as there are processors, if each finds the memory that it may need."""
    available = psutil.virtual_memory().available
    return max(1, min(len(os.sched_getaffinity(0)), available // _BUILD_MEMORY))


def _name_by_go(package: str) -> str:
    """The last element of a package's path that is not a major version."""
    return re.sub(r"/v\d+$", "", package).rsplit("/", 1)[-1]


def _copy(source: Path, target: Path) -> None:
    """Copy without the module cache's modes: nobody but root can remove what lies in a read-only folder."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for child in source.iterdir():
            _copy(child, target / child.name)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
