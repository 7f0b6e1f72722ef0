"""House rules on the syntax tree: races with processes and links, assertions, clocks, retries, libraries, log keys.

A part of `make lint`. A process may end, or become a zombie, between any two reads of its state: code that reads /proc
or uses psutil must handle that. An assertion must be able to fail. Root code walks no directory by path in which a pod
may place a symlink: `cedana_sched/runtime_handler/safe_open.py` walks by descriptors. No decision depends on a
machine's wall clock, because an admin may set the clock. Retries pause by a profile of `cedana_sched/retrying.py`.
`cedana_sched/runtime_handler/` runs where no library is installed, and private names of libraries change without
notice.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.tracked import tracked_files

ROOT = Path(__file__).resolve().parents[1]

LOOKS_AT_PROCESSES = frozenset({
    "cedana_sched/agent/orphan_processes.py",
    "cedana_sched/cluster/node/containers/containerd_wait.py",
    "cedana_sched/local/runs/run_supervisor.py",
    "cedana_sched/cluster/node/foreign_socket_monitor.py",
    "tests/integration/local/engine/test_vanishing_processes.py",  # it tests the next one
    "tests/processes.py",
})  # fmt: skip
"""Files that may use psutil's processes; other files use the functions of these."""

NEAR_PODS = (
    "cedana_sched/agent/",
    "cedana_sched/cluster/node/",
    "cedana_sched/runtime_handler/",
    "cedana_sched/snapshot/",
)
"""Where root code may access files of a pod."""
WALKS_OWN_FOLDERS = {
    "cedana_sched/agent/capture.py": "the work folder of a capture",
    "cedana_sched/agent/orphan_processes.py": "likewise",
    "cedana_sched/agent/staging.py": "staged images",
    "cedana_sched/cluster/node/installation/handler_registration.py": "containerd's configuration, on the host",
    "cedana_sched/cluster/node/installation/programs.py": "the agent's own image, and our folder on the host",
    "cedana_sched/cluster/node/restoring/incarnation_reports.py": "runc's folder of states, on the host",
    "cedana_sched/cluster/node/restoring/restore_states.py": "plans and logs, in our folders on the host",
    "cedana_sched/runtime_handler/file_watcher.py": "plans and results, in our folder on the host; the container's own",
    "cedana_sched/runtime_handler/layer.py": "reads an archive, and writes its files by descriptors",
    "cedana_sched/runtime_handler/held_processes.py": "control groups",
    "cedana_sched/snapshot/folder_archive.py": "writes an archive, by descriptors",
    "cedana_sched/snapshot/dump.py": "the folder of the stream's socket",
    "cedana_sched/snapshot/freezer.py": "control groups",
    "cedana_sched/snapshot/preflight.py": "descriptors below /proc",
    "cedana_sched/snapshot/criu_toolchain.py": "CRIU's programs, before there is a pod",
}
"""Files that walk, copy or remove trees by path there, or read archives, and the files concerned: never a pod's."""

PRODUCT = ("cedana_sched/", "webhooks/", "adapters/")
SHOWN = "shown to people"
TELLS_THE_TIME = {
    "cedana_sched/adapter/conformance/cluster_stage.py": "a scheduler on a stage",
    "cedana_sched/agent/frozen_workloads.py": "shown, and the age of a snapshot, in days",
    "cedana_sched/cli/engine.py": SHOWN,
    "cedana_sched/cli/jobs.py": SHOWN,
    "cedana_sched/cli/live_job_table.py": SHOWN,
    "cedana_sched/cli/snapshots.py": SHOWN,
    "cedana_sched/cli/submit.py": SHOWN,
    "cedana_sched/cluster/node/containers/containerd_wait.py": "since when a daemon runs; waiters are bounded",
    "cedana_sched/coordinator/clock.py": "followed, but slowly",
    "cedana_sched/kube/lease.py": "shown; others count the seconds in which it did not change",
    "cedana_sched/kube/server_time.py": "compared with the API server's",
    "cedana_sched/local/engine.py": SHOWN,
    "cedana_sched/local/runs/runtime.py": SHOWN,
    "cedana_sched/local/runs/run_supervisor.py": SHOWN,
    "cedana_sched/local/runs/supervision.py": SHOWN,
    "cedana_sched/local/api_service.py": SHOWN,
    "cedana_sched/snapshot/cgroups.py": "the age of folders; the kernel keeps those in use",
    "cedana_sched/store/page_fingerprint_cache.py": "the age of copies of what the store has",
    "cedana_sched/store/stale_s3_uploads.py": "signs requests, which the store compares with its own",
    "cedana_sched/store/s3.py": "the client of the store compares it with the same clock; what is refused is renewed",
    "cedana_sched/store/sealing/data_keys.py": "in names, of which those of the future come last",
    "cedana_sched/store/sealing/key_file.py": "in a name",
    "cedana_sched/store/snapshot_store.py": "ages of snapshots, in days; the newest stays",
    "cedana_sched/store/sts.py": "signs requests, which the store compares with its own",
    "cedana_sched/store/writer.py": "shown, and the age of a snapshot, in days",
}  # fmt: skip
"""Files that read the wall clock there, and their purpose. Other files use a monotonic clock or the server's time."""
_CLOCKS = frozenset({
    "date.today", "datetime.date.today", "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow",
    "datetime.now", "datetime.today", "datetime.utcnow", "time.CLOCK_REALTIME", "time.time", "time.time_ns",
})  # fmt: skip

BACKS_OFF = {
    "adapters/armada/cedana_sched_armada/settings.py": "between resubmissions of a job, as an admin sets it",
    "adapters/volcano/cedana_sched_volcano/extender/claims.py": "between attempts to preempt for one job",
    "cedana_sched/cluster/coordinator/garbage_collection_scheduler.py": "between turns, which do not fail",
    "cedana_sched/cluster/prestop_proxy/call_forwarder.py": "a socket of the node, for which the kubelet waits; fixed",
    "cedana_sched/cluster/node/restoring/incarnation_reports.py": "inotify, a resource of the node; fixed",
    "cedana_sched/cluster/node/restoring/locked_pod_decisions.py": "a lock of the node, held for moments; fixed",
    "cedana_sched/coordinator/core/turn.py": "the core has neither a clock nor chance",
    "cedana_sched/local/runs/run_supervisor.py": "there is one per job: it loads no event loop",
    "cedana_sched/local/runs/terminal_keeper.py": "there is one per job: it loads no event loop",
    "cedana_sched/local/scheduler/preemption_backoff.py": "how long a job is not preempted again",
    "cedana_sched/retrying.py": "has the profiles",
    "cedana_sched/snapshot/cgroups.py": "the kernel, for milliseconds; fixed",
}
"""Files that compute pauses themselves, or repeat at a fixed interval, and why no profile fits."""
_PAUSES = re.compile("backoff|delay|pause|resend|retry|(?<!milli)seconds", re.IGNORECASE)
_RETRIES = frozenset({"AsyncRetrying", "Retrying", "retry"})
_WAITS = ("wait_exponential", "wait_fixed", "wait_incrementing", "wait_none", "wait_random")
"""Of tenacity."""

STANDARD_LIBRARY_ALONE = ("cedana_sched/__init__.py", "cedana_sched/runtime_handler/")
OURS = "cedana_sched"
"""What the names of our packages begin with."""
_NO_SECRETS = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Of named tuples: documented, and without an underscore they could be names of fields."""

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
    rules = (
        _psutil,
        _walks,
        _unguarded,
        _guards,
        _clocks,
        _backoffs,
        _libraries,
        _private_names,
        _log_keys,
        _documented,
    )
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
                remedy = (
                    "tests/processes.py has what tests need" if path.startswith("tests/") else "see orphan_processes.py"
                )
                yield node.lineno, f"psutil.{name}: the process may end meanwhile; {remedy}"
            case ast.Call(func=ast.Attribute(value=value, attr="iterdir" | "glob" | "rglob")) if _is_all_of_proc(value):
                yield node.lineno, "walks /proc: the processes may end meanwhile; see tests/processes.py"


def _walks(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield walks of trees by path, during which a process of a pod may replace a directory by a symlink."""
    if not path.startswith(NEAR_PODS) or path in WALKS_OWN_FOLDERS:
        return
    remedy = "runtime_handler/safe_open.py walks by descriptors; own folders: WALKS_OWN_FOLDERS"
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
                yield node.lineno, f"{name} jumps when the machine's clock is set; {remedy}"
            case ast.ImportFrom(module="time", names=names) if {one.name for one in names} & {"time", "time_ns"}:
                yield node.lineno, f"imports a clock that jumps when it is set; {remedy}"


def _backoffs(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield pauses between attempts that come from no profile: they have bounds of their own, or no jitter."""
    if not path.startswith(PRODUCT) or path in BACKS_OFF:
        return
    remedy = "take a profile of cedana_sched/retrying.py; what is no such retry: BACKS_OFF"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="min"), args=args) if any(map(_is_product, args)) and _is_pause(node):
                yield node.lineno, f"{ast.unparse(node)} is a backoff of its own; {remedy}"
            case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Mult()) as product) if _is_pause(
                target
            ) and ast.unparse(target) in ast.unparse(product):
                yield node.lineno, f"{ast.unparse(node)} is a backoff of its own; {remedy}"
            case ast.AugAssign(target=target, op=ast.Mult()) if _is_pause(target):
                yield node.lineno, f"{ast.unparse(node)} is a backoff of its own; {remedy}"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name.startswith(_WAITS):
                yield node.lineno, f"{name} is a backoff of its own; {remedy}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tenacity"), attr=name), keywords=words) if (
                name in _RETRIES and "wait" not in {word.arg for word in words}
            ):
                yield node.lineno, f"tenacity.{name} pauses nowhere; {remedy}"
            case ast.FunctionDef() | ast.AsyncFunctionDef() if "next_pause" not in ast.unparse(node):
                for line in _sleeps_after_errors(node):
                    yield line, f"{node.name} sleeps after an error, and calls again; {remedy}"


def _is_product(node: ast.expr) -> bool:
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult | ast.Pow) for part in ast.walk(node))


def _is_pause(node: ast.expr) -> bool:
    return _PAUSES.search(ast.unparse(node)) is not None


def _sleeps_after_errors(function: Function) -> Iterator[int]:
    """Yield the lines of sleeps in the handlers of a loop of the function itself."""
    for loop in ast.walk(function):
        if isinstance(loop, ast.While | ast.For | ast.AsyncFor):
            for handler in ast.walk(loop):
                if isinstance(handler, ast.ExceptHandler):
                    for call in ast.walk(handler):
                        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("sleep"):
                            yield call.lineno


def _libraries(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield imports where only the standard library and `cedana_sched.runtime_handler` are installed."""
    if not path.startswith(STANDARD_LIBRARY_ALONE):
        return
    for line, module in _imported(tree):
        is_own = f"{module}.".startswith(f"{OURS}.runtime_handler.")
        if not is_own and module.partition(".")[0] not in sys.stdlib_module_names:
            yield line, f"imports {module}, which a host and a restore container lack: the standard library alone"


def _private_names(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield private names of libraries that ruff's SLF001 does not see: in imports, strings, and subclasses."""
    if not path.startswith(PRODUCT):
        return
    remedy = "is private to its library, which may change it in any version"
    for line, module in _imported(tree):
        if not module.startswith(OURS) and any(map(_is_private, module.split("."))):
            yield line, f"{module} {remedy}"
    foreign = _foreign_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0, names=names) if not module.startswith(OURS):
                yield from ((node.lineno, f"{module}.{one.name} {remedy}") for one in names if _is_private(one.name))
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(str(name)), *_]) if _is_private(name):
                yield node.lineno, f"{name} is private, and getattr hides it from other checks"
            case ast.ClassDef(bases=[_, *_]) if all(_first_name(base) in foreign for base in node.bases):
                own = _own_names(node)
                for line, name in _names_of_self(node):
                    if name not in own:
                        yield line, f"{node.name} uses {name} of {ast.unparse(node.bases[0])}, which {remedy}"


_LOG_KEYS = {"problem": "error", "problems": "errors", "said": "reason", "why": "reason"}
"""Other words for the two keys of log lines: `error` is what was raised, `reason` any other cause."""


def _log_keys(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield keys of log lines that have another name elsewhere."""
    if not path.startswith(PRODUCT):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log" | "_log")) | ast.Name(id="write_log"), keywords=keywords
            ):
                for key in keywords:
                    if key.arg in _LOG_KEYS:
                        yield node.lineno, f"logs `{key.arg}`: call it `{_LOG_KEYS[key.arg]}`"


def _documented(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield names below `Args:` that are no parameter; ruff's D417 finds the reverse."""
    if not path.startswith(PRODUCT):
        return
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef) and "Args:\n" in (text := ast.get_docstring(node) or ""):
            section = text.partition("Args:\n")[2].partition("\n\n")[0]
            names = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
            if isinstance(node, ast.ClassDef):
                names |= {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
            for found in re.finditer(r"^ {4}(\w+):", section, re.MULTILINE):
                if found[1] not in names:
                    yield node.lineno, f"{node.name} documents `{found[1]}`, which is no parameter"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the modules of all imports, including those in functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, one.name) for one in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module


def _foreign_names(tree: ast.Module) -> set[str]:
    """Return the names that imports from other packages than ours define."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.asname or one.name.partition(".")[0] for one in names if not one.name.startswith(OURS)}
            case ast.ImportFrom(module=str(module), level=0, names=names) if not module.startswith(OURS):
                found |= {one.asname or one.name for one in names}
    return found


def _first_name(base: ast.expr) -> str:
    while isinstance(base, ast.Attribute | ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def _own_names(definition: ast.ClassDef) -> set[str]:
    """Return the private names that a class defines: methods, fields, and attributes that it sets."""
    found: set[str] = set()
    for node in ast.walk(definition):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def _names_of_self(definition: ast.ClassDef) -> Iterator[tuple[int, str]]:
    for node in ast.walk(definition):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Load()) if _is_private(name):
                yield node.lineno, name
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if _is_private(name):
                yield node.lineno, name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _NO_SECRETS


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
    texts = ((name, (ROOT / name).read_text(encoding="utf-8")) for name in tracked_files(ROOT, "*.py"))
    found = [complaint for name, text in texts for complaint in complaints(name, text)]
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
