"""Starts and restores jobs as the supervisor of a run does: in a process without threads, which pytest is not.

`python -m tests.integration.snapshot.single_threaded` calls a function of the product, pickled with its arguments on
standard input, and pickles what comes of it. When it has ended, the job is a child of the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from cedana_sched.local.runs.child_subreaper import become_child_subreaper
from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.launch import interpreter_environment

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

_libc = ctypes.CDLL(None)

P = ParamSpec("P")
R = TypeVar("R")


def call(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Call a function in such a process; return or raise what it does, or a SnapshotError in place of an OSError."""
    with _inherit_orphans():
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=pickle.dumps((function, arguments, named)), capture_output=True, check=False,
            env=interpreter_environment(),
        )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr.decode(errors="replace"))
    result: R | Exception = pickle.loads(done.stdout)  # noqa: S301 - our own process wrote it
    if isinstance(result, OSError):
        raise SnapshotError(str(result))
    if isinstance(result, Exception):
        raise result
    return result


@contextlib.contextmanager
def _inherit_orphans() -> Iterator[None]:
    """Be the parent of what has lost its own, as a child subreaper, until the end of the block."""
    before = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def main() -> None:
    become_child_subreaper()
    function, arguments, named = pickle.load(sys.stdin.buffer)  # noqa: S301 - likewise
    try:
        result = function(*arguments, **named)
    except (SnapshotError, OSError) as error:
        result = error
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    main()
