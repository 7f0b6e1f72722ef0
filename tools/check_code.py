"""House rules on the syntax tree: races with processes and links, assertions that cannot fail, and wall clocks.

A part of `make lint`. A process may end, or become a zombie, between any two reads of its state: code that reads /proc
or uses psutil must handle that. An assertion must be able to fail. Root code walks no directory by path in which a pod
may place a symlink: `cedana_sched/runtime/beneath.py` walks by descriptors. No decision depends on a machine's wall
clock, because an admin may set the clock.
"""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LOOKS_AT_PROCESSES = frozenset({
    "cedana_sched/agent/orphans.py",
    "cedana_sched/cluster/node/containers/daemon_answers.py",
    "cedana_sched/cluster/node/hold_port.py",
    "tests/integration/local/engine/test_vanishing_processes.py",  # it tests the next one
    "tests/processes.py",
})  # fmt: skip
"""Files that may use psutil's processes; other files use the functions of these."""

NEAR_PODS = ("cedana_sched/agent/", "cedana_sched/cluster/node/", "cedana_sched/runtime/", "cedana_sched/snapshot/")
"""Where root code may access files of a pod."""
WALKS_OWN_FOLDERS = {
    "cedana_sched/agent/capture.py": "the work folder of a capture",
    "cedana_sched/agent/orphans.py": "likewise",
    "cedana_sched/agent/staging.py": "staged images",
    "cedana_sched/cluster/node/installation/keeping.py": "containerd's configuration, on the host",
    "cedana_sched/cluster/node/installation/programs.py": "the agent's own image, and our folder on the host",
    "cedana_sched/cluster/node/returning/new_beginnings.py": "runc's folder of states, on the host",
    "cedana_sched/cluster/node/returning/kept.py": "plans and logs, in our folders on the host",
    "cedana_sched/runtime/changes.py": "plans and results, in our folder on the host; the restore container's own",
    "cedana_sched/runtime/layer.py": "reads an archive, and lays it by descriptors",
    "cedana_sched/runtime/held.py": "control groups",
    "cedana_sched/snapshot/archive.py": "writes an archive, by descriptors",
    "cedana_sched/snapshot/dump.py": "the folder of the stream's socket",
    "cedana_sched/snapshot/freezer.py": "control groups",
    "cedana_sched/snapshot/preflight.py": "descriptors below /proc",
    "cedana_sched/snapshot/toolchain.py": "CRIU's programs, before there is a pod",
}
"""Files that walk, copy or remove trees by path there, or read archives, and the files concerned: never a pod's."""

PRODUCT = ("cedana_sched/", "webhooks/", "adapters/")
SHOWN = "shown to people"
TELLS_THE_TIME = {
    "cedana_sched/adapter/conformance/cluster_stage.py": "a scheduler on a stage",
    "cedana_sched/agent/frozen.py": "shown, and the age of a snapshot, in days",
    "cedana_sched/cli/engine.py": SHOWN,
    "cedana_sched/cli/jobs.py": SHOWN,
    "cedana_sched/cli/live.py": SHOWN,
    "cedana_sched/cli/snapshots.py": SHOWN,
    "cedana_sched/cli/submit.py": SHOWN,
    "cedana_sched/cluster/node/containers/daemon_answers.py": "since when a daemon runs; who waits for it is bounded",
    "cedana_sched/coordinator/clock.py": "followed, but slowly",
    "cedana_sched/kube/lease.py": "shown; others count the seconds in which it did not change",
    "cedana_sched/kube/server_time.py": "compared with the API server's",
    "cedana_sched/local/engine.py": SHOWN,
    "cedana_sched/local/runs/runtime.py": SHOWN,
    "cedana_sched/local/runs/shim.py": SHOWN,
    "cedana_sched/local/runs/supervision.py": SHOWN,
    "cedana_sched/local/service.py": SHOWN,
    "cedana_sched/snapshot/cgroups.py": "the age of folders; the kernel keeps those in use",
    "cedana_sched/store/node_cache.py": "the age of copies of what the store has",
    "cedana_sched/store/s3.py": "the client of the store compares it with the same clock; what is refused is renewed",
    "cedana_sched/store/sealing/data_keys.py": "in names, of which those of the future come last",
    "cedana_sched/store/sealing/key_file.py": "in a name",
    "cedana_sched/store/snapshots.py": "ages of snapshots, in days; the newest stays",
    "cedana_sched/store/sts.py": "signs requests, which the store compares with its own",
    "cedana_sched/store/writer.py": "shown, and the age of a snapshot, in days",
}  # fmt: skip
"""Files that read the wall clock there, and their purpose. Other files use a monotonic clock or the server's time."""
_CLOCKS = frozenset({
    "date.today", "datetime.date.today", "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow",
    "datetime.now", "datetime.today", "datetime.utcnow", "time.CLOCK_REALTIME", "time.time", "time.time_ns",
})  # fmt: skip

_WALKS = frozenset({
    "os.removedirs", "os.renames", "os.scandir", "os.walk", "shutil.copytree", "shutil.move", "shutil.rmtree",
    "shutil.unpack_archive", "tarfile.TarFile", "tarfile.TarInfo", "tarfile.open", "zipfile.ZipFile",
})  # fmt: skip

_PSUTIL = frozenset({"Process", "children", "pid_exists", "pids", "process_iter", "wait_procs"})
_GONE = frozenset({"FileNotFoundError", "ProcessLookupError"})
"""Errors of reads below /proc/PID: the first before the file is open, the second afterwards (proc(5))."""
_ALL_OF_IT = frozenset({"Exception", "OSError"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def complaints(path: str, text: str) -> Iterator[str]:
    """Yield every violation in one file, as `file:line: what`."""
    tree = ast.parse(text)
    rules = (_psutil, _walks, _unguarded, _guards, _clocks)
    found = (*(rule(path, tree) for rule in rules), _two_words(tree))
    for line, what in itertools.chain(*found):
        yield f"{path}:{line}: {what}"


def _psutil(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield walks of processes outside `LOOKS_AT_PROCESSES`, because a process may end during the walk."""
    if path in LOOKS_AT_PROCESSES:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="psutil"), attr=name)) if name in _PSUTIL:
                remedy = "tests/processes.py has what tests need" if path.startswith("tests/") else "see orphans.py"
                yield node.lineno, f"psutil.{name}: the process may end meanwhile; {remedy}"
            case ast.Call(func=ast.Attribute(value=value, attr="iterdir" | "glob" | "rglob")) if _is_all_of_proc(value):
                yield node.lineno, "walks /proc: the processes may end meanwhile; see tests/processes.py"


def _walks(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield walks of trees by path, during which a process of a pod may replace a directory by a symlink."""
    if not path.startswith(NEAR_PODS) or path in WALKS_OWN_FOLDERS:
        return
    remedy = "runtime/beneath.py walks by descriptors; own folders: WALKS_OWN_FOLDERS"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="rglob" | "extractall") as function):
                yield node.lineno, f"{function.attr} goes by path, and a pod's process may put a link there; {remedy}"
            case ast.Call(func=function) if (name := ast.unparse(function)) in _WALKS:
                yield node.lineno, f"{name} goes by path, and a pod's process may put a link there; {remedy}"


def _clocks(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield uses of the wall clock, including references to the function."""
    if not path.startswith(PRODUCT) or path in TELLS_THE_TIME:
        return
    remedy = "SERVER_TIME, a clock that is handed in, or time.monotonic; what only shows it: TELLS_THE_TIME"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() if (name := ast.unparse(node)) in _CLOCKS:
                yield node.lineno, f"{name} jumps when somebody sets the machine's clock; {remedy}"
            case ast.ImportFrom(module="time", names=names) if {one.name for one in names} & {"time", "time_ns"}:
                yield node.lineno, f"imports a clock that jumps when somebody sets it; {remedy}"


def _is_all_of_proc(node: ast.expr) -> bool:
    return ast.unparse(node) in {"Path('/proc')", "pathlib.Path('/proc')"}


def _unguarded(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield functions that read below /proc/PID, and neither handle nor document the end of the process.

    Tests are exempt, because their process cannot end before the test.
    """
    if Path(path).name.startswith("test_"):
        return
    for function in ast.walk(tree):
        if not isinstance(function, Function) or not _reads_a_process(function):
            continue
        handled = _handled(function)
        said = set((ast.get_docstring(function) or "").replace(",", " ").replace(":", " ").split()) >= _GONE
        if not (said or handled >= _GONE or handled & _ALL_OF_IT):
            names = " and ".join(sorted(_GONE - handled))
            yield function.lineno, f"{function.name} reads below /proc/PID; {names} must be handled, or be in `Raises:`"


def _reads_a_process(function: Function) -> bool:
    """Whether the function itself opens, lists or follows a path below /proc/PID."""
    return any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in _READS and _has_pid(node.func.value))
            or (ast.unparse(node.func) in _OPENS and any(map(_has_pid, node.args)))
        )
        for node in ast.walk(function)
    )


_READS = frozenset({"iterdir", "open", "read_bytes", "read_text", "readlink", "stat", "write_text"})
_OPENS = frozenset({"open", "os.listdir", "os.open", "os.readlink", "os.stat"})


def _has_pid(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.JoinedStr)
        and len(part.values) > 1
        and isinstance(part.values[0], ast.Constant)
        and part.values[0].value == "/proc/"
        for part in ast.walk(node)
    )


def _handled(function: Function) -> set[str]:
    """Return the names of the errors that the function handles."""
    found: set[str] = set()
    for node in ast.walk(function):
        match node:
            case ast.ExceptHandler(type=ast.expr() as kind):
                found |= _names(kind)
            case ast.Call(func=function_called, args=kinds) if ast.unparse(function_called).endswith("suppress"):
                found |= {name for kind in kinds for name in _names(kind)}
    return found


def _names(kind: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}


def _two_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield `assert "exit code 3" in said or "3" in said`: the second word makes the first one redundant."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=ast.BoolOp(op=ast.Or(), values=values)):
                subjects = [
                    ast.unparse(value.comparators[0])
                    for value in values
                    if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.In)
                ]
                if len(set(subjects)) < len(subjects):
                    yield node.lineno, "asserts one word or another of the same text: say which one it is"


_GUARDS = frozenset({"asyncio.timeout", "asyncio.wait", "asyncio.wait_for"})
_EXPECTED_SECONDS, _GUARD_SECONDS = 1.0, 60.0
"""Maximum wait of a test for an event that must not occur, and minimum timeout for an expected event."""


def _guards(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield timeouts of tests that a busy machine may exceed."""
    if not path.startswith(("tests/unit/", "tests/integration/")):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _GUARDS:
            for given in (*node.args, *(word.value for word in node.keywords)):
                seconds = given.value if isinstance(given, ast.Constant) else None
                if isinstance(seconds, int | float) and _EXPECTED_SECONDS < seconds < _GUARD_SECONDS:
                    yield node.lineno, f"{seconds} s are over on a busy machine: give it {_GUARD_SECONDS:.0f}"


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    found = [complaint for name in names for complaint in complaints(name, (ROOT / name).read_text(encoding="utf-8"))]
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
