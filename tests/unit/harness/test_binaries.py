"""The builder of the cluster's programs, on a module of one file that needs nothing from anywhere."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.cluster.binaries import build, go
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.binaries.catalog import MODULES, TOOLS, Tool
from tests.cluster.binaries.failures import explain
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps

_MODULE = "greeter.invalid"
_GREETER = Tool("greeter", _MODULE, {"greet": f"{_MODULE}/hello"}, {"main.version": "{version}"})
_SOURCE = "package main\n\nvar version string\n\nfunc main() { println(version) }\n"


class Workshop:
    """A catalogue of one tool, and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules = folder / "tools"
        self.cache = folder / "cache" / "cedana-sched"
        self.output = io.StringIO()
        self.tools = {"greeter": _GREETER}
        module, sources = self.modules / "greeter", folder / "sources"
        for needed in (module, sources / "hello", sources / "charts" / "greeter"):
            needed.mkdir(parents=True, exist_ok=True)
        (sources / "charts" / "greeter" / "Chart.yaml").write_text("name: greeter\n")
        (sources / "go.mod").write_text(f"module {_MODULE}\n\ngo 1.26\n")
        self.source = sources / "hello" / "main.go"
        self.source.write_text(_SOURCE)
        (module / "go.mod").write_text(
            f"module here.invalid\n\ngo 1.26\n\ntool {_MODULE}/hello\n\nrequire {_MODULE} v1.2.3\n\n"
            f"replace {_MODULE} => {sources}\n"
        )
        (module / "go.sum").touch()

    async def ensure(self) -> Binaries:
        return await ensure("greeter", steps=Steps(self.output), tools=self.tools, modules=self.modules)

    def entries(self) -> list[Path]:
        return sorted((self.cache / "bin").iterdir())

    def builds(self) -> int:
        return self.output.getvalue().count("Build greet")


def run_once(program: Path) -> str:
    return subprocess.run([program], check=True, capture_output=True, text=True).stderr


@pytest.fixture(scope="session")
def go_cache() -> str:
    """The cache of compiled packages that this machine has anyway; the tests' own XDG_CACHE_HOME would hide it."""
    program = asyncio.run(go.find_go()).program
    return subprocess.run([program, "env", "GOCACHE"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def workshop(tmp_path: Path, go_cache: str, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("GOCACHE", go_cache)
    monkeypatch.setenv("GOPROXY", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Workshop(tmp_path)


async def test_a_program_is_built_with_its_version_and_only_once(workshop: Workshop) -> None:
    first = await workshop.ensure()
    assert run_once(first.program("greet")) == "v1.2.3\n"
    assert (await workshop.ensure()).folders == first.folders
    assert workshop.builds() == 1
    [entry] = workshop.entries()
    assert entry.name.startswith("greeter-1.2.3-")
    assert sorted(path.name for path in entry.iterdir()) == ["bin", "complete.json"]


async def test_files_of_the_module_are_kept_beside_the_programs(workshop: Workshop) -> None:
    workshop.tools["greeter"] = replace(_GREETER, files=("charts/greeter",))
    binaries = await workshop.ensure()
    assert (binaries.files("greeter", "charts/greeter") / "Chart.yaml").read_text() == "name: greeter\n"
    with pytest.raises(KeyError, match="is not kept"):
        binaries.files("greeter", "charts/other")
    with pytest.raises(KeyError, match="none of greeter"):
        binaries.program("wave")


def _truncate(entry: Path) -> None:
    os.truncate(entry / "bin" / "greet", 1000)


def _zero_a_page(entry: Path) -> None:
    with (entry / "bin" / "greet").open("r+b") as program:
        program.write(bytes(4096))


def _forbid(entry: Path) -> None:
    (entry / "bin" / "greet").chmod(0o644)


def _remove_program(entry: Path) -> None:
    (entry / "bin" / "greet").unlink()


def _remove_record(entry: Path) -> None:
    (entry / "complete.json").unlink()


def _cut_record(entry: Path) -> None:
    os.truncate(entry / "complete.json", 20)


def _empty_record(entry: Path) -> None:
    (entry / "complete.json").write_text("[]")


@pytest.mark.parametrize(
    "damage", [_truncate, _zero_a_page, _forbid, _remove_program, _remove_record, _cut_record, _empty_record]
)
async def test_what_was_damaged_is_built_again(workshop: Workshop, damage: Callable[[Path], None]) -> None:
    entry = (await workshop.ensure()).folders["greeter"]
    damage(entry)
    program = (await workshop.ensure()).program("greet")
    assert workshop.builds() == 2
    assert run_once(program) == "v1.2.3\n"
    assert json.loads((entry / "complete.json").read_text())["version"] == "v1.2.3"


async def test_another_go_sum_or_stamp_is_another_program(workshop: Workshop) -> None:
    await workshop.ensure()
    workshop.tools["greeter"] = replace(_GREETER, stamps={})
    await workshop.ensure()
    (workshop.modules / "greeter" / "go.sum").write_text("\n")
    await workshop.ensure()
    assert workshop.builds() == len(workshop.entries()) == 3


async def test_two_callers_at_once_build_once(workshop: Workshop) -> None:
    first, second = await asyncio.gather(workshop.ensure(), workshop.ensure())
    assert first.program("greet") == second.program("greet")
    assert workshop.builds() == 1


async def test_a_build_that_fails_names_its_log_and_leaves_nothing(workshop: Workshop) -> None:
    workshop.source.write_text("package main\n\nfunc main() { unknown() }\n")
    with pytest.raises(ClusterError, match=r"building greeter failed: .*undefined: unknown") as caught:
        await workshop.ensure()
    assert caught.value.log is not None
    assert "undefined: unknown" in caught.value.log.read_text()
    assert workshop.entries() == []
    workshop.source.write_text(_SOURCE)
    await workshop.ensure()
    assert len(workshop.entries()) == 1


@pytest.fixture
def endless_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipe through which a Go that builds for ever, with a compiler beside it, says who both are."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    program = tmp_path / "fake" / "go"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = version ] && exec echo go version go1.26.0\n'
        f"sleep 1000 & echo $$ $! >{pids}\ntouch $GOTMPDIR/half-made\nwait\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(go, "_INSTALLED_HERE", program)
    return pids


async def _end_of(process: int) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), 60)
    finally:
        loop.remove_reader(process)
        os.close(process)


async def test_a_caller_that_gives_up_ends_the_build_and_leaves_nothing(workshop: Workshop, endless_go: Path) -> None:
    building = asyncio.create_task(workshop.ensure())
    pids = (await asyncio.to_thread(endless_go.read_text)).split()
    processes = [os.pidfd_open(int(pid)) for pid in pids]
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    for process in processes:
        await _end_of(process)
    assert workshop.entries() == []


async def test_a_caller_that_is_killed_leaves_nobody_building_and_nothing_in_the_way(
    workshop: Workshop, endless_go: Path
) -> None:
    script = (
        "import asyncio, pathlib, sys; from tests.unit.harness import test_binaries as this\n"
        "this.go._INSTALLED_HERE = pathlib.Path(sys.argv[2])\n"
        "asyncio.run(this.Workshop(pathlib.Path(sys.argv[1])).ensure())"
    )
    caller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, workshop.folder, go._INSTALLED_HERE), cwd=Path(__file__).parents[3]
    )
    build_pid, compiler_pid = map(int, (await asyncio.to_thread(endless_go.read_text)).split())
    process = os.pidfd_open(build_pid)
    caller.kill()
    await caller.wait()
    await _end_of(process)
    os.kill(compiler_pid, signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(go, "_INSTALLED_HERE", Path("/nonexistent"))
        assert run_once((await workshop.ensure()).program("greet")) == "v1.2.3\n"
    assert len(workshop.entries()) == 1


@pytest.mark.parametrize(("version", "seen"), [(None, ""), ("go1.19.8", ": {folder}/go is go1.19")])
async def test_a_missing_or_old_go_is_named(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, seen: str
) -> None:
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(go, "_INSTALLED_HERE", tmp_path / "none")
    if version is not None:
        (folder / "go").write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
        (folder / "go").chmod(0o755)
    with pytest.raises(ClusterError) as caught:
        await workshop.ensure()
    assert caught.value.what == f"no Go of at least 1.26 is here{seen.format(folder=folder)}"
    assert "make go" in caught.value.remedy


async def test_an_unknown_name_and_a_module_without_its_lock_are_refused(workshop: Workshop) -> None:
    with pytest.raises(ClusterError, match="no tool 'kubelet'; take one of greeter"):
        await ensure("kubelet", steps=Steps(workshop.output), tools=workshop.tools, modules=workshop.modules)
    (workshop.modules / "greeter" / "go.sum").unlink()
    with pytest.raises(ClusterError, match=r"go\.sum is missing"):
        await workshop.ensure()


def _nothing(_: Path) -> None:
    """A proxy that has no module at all."""


def _another_module(proxy: Path) -> None:
    versions = proxy / _MODULE / "@v"
    versions.mkdir(parents=True)
    (versions / "v1.2.3.mod").write_text(f"module {_MODULE}\n")
    with zipfile.ZipFile(versions / "v1.2.3.zip", "w") as module:
        module.writestr(f"{_MODULE}@v1.2.3/hello/main.go", _SOURCE)


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (None, "a module is not in the module cache, and GOPROXY=off forbids to fetch it"),
        (_nothing, f"module {_MODULE}@v1.2.3 is not served"),
        (_another_module, f"module {_MODULE}@v1.2.3 is not what go.sum or the checksum database says"),
    ],
)
async def test_a_module_that_cannot_be_had_is_named(
    workshop: Workshop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[Path], None] | None,
    reason: str,
) -> None:
    proxy, module = tmp_path / "proxy", workshop.modules / "greeter"
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    if serve is not None:
        serve(proxy)
        monkeypatch.setenv("GOPROXY", proxy.as_uri())
    (module / "go.mod").write_text((module / "go.mod").read_text().split("replace")[0])
    nobodys = base64.b64encode(bytes(32)).decode()
    (module / "go.sum").write_text(f"{_MODULE} v1.2.3 h1:{nobodys}\n{_MODULE} v1.2.3/go.mod h1:{nobodys}\n")
    with pytest.raises(ClusterError) as caught:
        await workshop.ensure()
    assert caught.value.what == f"building greeter failed: {reason}"
    assert "GOPROXY" in caught.value.remedy
    assert workshop.entries() == []


@pytest.mark.parametrize(
    ("output", "status", "reason"),
    [
        (
            "go: downloading x v1.0.0\ngo: a.example/b@v1.0.0: reading https://proxy.example/x: 404 Not Found",
            1,
            "module a.example/b@v1.0.0 is not served",
        ),
        (
            "main.go:4:2: a.example/b@v1.0.0-rc.1+incompatible: reading https://proxy.example/x: 410 Gone",
            1,
            "module a.example/b@v1.0.0-rc.1+incompatible is not served",
        ),
        (
            "go: a.example/b@v1.0.0 requires\n\tc.example/d@v0.1.0: reading https://proxy.example/x: 404 Not Found",
            1,
            "module c.example/d@v0.1.0 is not served",
        ),
        (
            "verifying a.example/b@v1.0.0: checksum mismatch\n\tdownloaded: h1:x=\n\tgo.sum: h1:y=\n\nSECURITY ERROR",
            1,
            "module a.example/b@v1.0.0 is not what go.sum or the checksum database says",
        ),
        (
            "verifying a.example/b@v1.0.0/go.mod: checksum mismatch",
            1,
            "module a.example/b@v1.0.0 is not what go.sum or the checksum database says",
        ),
        (
            "# a.example/b\nwrite /x/_pkg_.a: no space left on device",
            1,
            "the disk is full",
        ),
        (
            "a.example/b: /x/compile: signal: killed",
            1,
            "the compiler was killed or found no memory",
        ),
        ("", -9, "the compiler was killed or found no memory"),
        (
            "main.go:3:8: missing go.sum entry for module providing package a.example/b",
            1,
            "go.mod and go.sum do not cover what is built",
        ),
        (
            'go: a.example/b@v1.0.0: Get "https://proxy.example/x": dial tcp: lookup proxy.example: no such host',
            1,
            "the module proxy cannot be reached",
        ),
        (
            "go: go.mod requires go >= 1.27.1 (running go 1.26.8; GOTOOLCHAIN=local)",
            1,
            "it needs Go 1.27.1 or later",
        ),
        ("go: downloading x v1.0.0\n# pkg\npkg/a.go:1:1: syntax error", 1, "pkg/a.go:1:1: syntax error"),
        ("", 2, "go ended with status 2"),
    ],
)
def test_what_go_says_is_explained(output: str, status: int, reason: str) -> None:
    assert explain(output, status).reason == reason


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_each_tool_has_its_module_and_names_of_its_own(name: str) -> None:
    tool = TOOLS[name]
    required = (MODULES / name / "go.mod").read_text()
    assert (MODULES / name / "go.sum").stat().st_size > 0
    assert all(package in required for package in tool.programs.values())
    others = {program for other in TOOLS.values() if other is not tool for program in other.programs}
    assert not others & set(tool.programs)


def test_builds_at_once_are_as_many_as_memory_and_processors_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(gib: float, processors: int) -> int:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": int(gib * 2**30)}))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
        return build._builds_at_once()

    assert [at_once(1, 8), at_once(9, 8), at_once(64, 2)] == [1, 2, 2]
