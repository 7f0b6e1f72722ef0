"""House rules on the syntax tree: what fails by luck, what cannot fail, and what leads root elsewhere.

`make lint` calls it. A process may end, or become a zombie, between any two looks at it: who looks at /proc or through
psutil says what happens then. An assertion must be able to fail. And root walks no folder by its path in which a pod
may have put a link: `cedana_sched/runtime/beneath.py` does it by descriptors.
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
    "tests/integration/engine/test_vanishing_processes.py",  # it tries the next one
    "tests/processes.py",
})  # fmt: skip
"""Where psutil's processes may be used; others take what is here."""

NEAR_PODS = ("cedana_sched/agent/", "cedana_sched/cluster/node/", "cedana_sched/runtime/", "cedana_sched/snapshot/")
"""Where root code may come upon the files of a pod."""
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
"""What walks, copies or removes trees by path there, or reads archives, with whose files these are: never a pod's."""

_WALKS = frozenset({
    "os.removedirs", "os.renames", "os.scandir", "os.walk", "shutil.copytree", "shutil.move", "shutil.rmtree",
    "shutil.unpack_archive", "tarfile.TarFile", "tarfile.TarInfo", "tarfile.open", "zipfile.ZipFile",
})  # fmt: skip

_PSUTIL = frozenset({"Process", "children", "pid_exists", "pids", "process_iter", "wait_procs"})
_GONE = frozenset({"FileNotFoundError", "ProcessLookupError"})
"""What reading below /proc/PID raises: before the file is open the first, after it the second (proc(5))."""
_ALL_OF_IT = frozenset({"Exception", "OSError"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def complaints(path: str, text: str) -> Iterator[str]:
    """Every breach in one file, as `file:line: what`."""
    tree = ast.parse(text)
    rules = (_psutil(path, tree), _walks(path, tree), _unguarded(path, tree), _two_words(tree), _guards(path, tree))
    for line, what in itertools.chain.from_iterable(rules):
        yield f"{path}:{line}: {what}"


def _psutil(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Walks of processes that do not know that processes vanish."""
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
    """Walks of trees by path, where a process of a pod may exchange a folder for a link meanwhile."""
    if not path.startswith(NEAR_PODS) or path in WALKS_OWN_FOLDERS:
        return
    remedy = "runtime/beneath.py walks by descriptors; own folders: WALKS_OWN_FOLDERS"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="rglob" | "extractall") as function):
                yield node.lineno, f"{function.attr} goes by path, and a pod's process may put a link there; {remedy}"
            case ast.Call(func=function) if (name := ast.unparse(function)) in _WALKS:
                yield node.lineno, f"{name} goes by path, and a pod's process may put a link there; {remedy}"


def _is_all_of_proc(node: ast.expr) -> bool:
    return ast.unparse(node) in {"Path('/proc')", "pathlib.Path('/proc')"}


def _unguarded(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Functions that read below /proc/PID, and neither handle nor announce that the process has ended.

    Tests of a process that they started, and that cannot end before them, may.
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
    """Whether a path below /proc/PID is opened, listed or followed in the function itself."""
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
    """Names of the errors that the function expects somewhere."""
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
    """`assert "exit code 3" in said or "3" in said`: the second word makes the first one idle."""
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
"""A test waits so long for what is not to happen, at most; and so long for what is, at least."""


def _guards(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What keeps a test from hanging, and ends it on a busy machine as well."""
    if not path.startswith(("tests/unit/", "tests/integration/")):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _GUARDS:
            for given in (*node.args, *(word.value for word in node.keywords)):
                if isinstance(given, ast.Constant) and _EXPECTED_SECONDS < (given.value or 0) < _GUARD_SECONDS:
                    yield node.lineno, f"{given.value} s are over on a busy machine: give it {_GUARD_SECONDS:.0f}"


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    found = [complaint for name in names for complaint in complaints(name, (ROOT / name).read_text(encoding="utf-8"))]
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
