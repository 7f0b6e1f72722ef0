"""Exit codes, their meanings, and the mapping of errors to exit codes; the source of docs/cli.md."""

from __future__ import annotations

from enum import IntEnum

from cedana_sched.model import errors


class ExitCode(IntEnum):
    """Exit codes, a stable interface for scripts: codes may be added, meanings never change."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    TIMED_OUT = 5
    INCOMPATIBLE = 6
    UNREACHABLE = 7
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "tried, and failed; also when a job that was waited for failed or was cancelled",
    ExitCode.USAGE: "what was written cannot be done; the message names the field, the value and the remedy",
    ExitCode.NOT_FOUND: "the job, snapshot or file does not exist",
    ExitCode.REFUSED: "refused by the job's present phase, by keys or by permissions",
    ExitCode.TIMED_OUT: "the wait timed out; the operation continues",
    ExitCode.INCOMPATIBLE: "the snapshot cannot continue on this machine",
    ExitCode.UNREACHABLE: "engine, store or API server unreachable; the same command may work later",
    ExitCode.INTERRUPTED: "interrupted by the user",
}

# The first match wins, so subclasses precede their bases.
_BY_ERROR: tuple[tuple[type[errors.CedanaSchedError], ExitCode], ...] = (
    (errors.NotFoundError, ExitCode.NOT_FOUND),
    (errors.RefusedError, ExitCode.REFUSED),
    (errors.UsageError, ExitCode.USAGE),
    (errors.IncompatibleError, ExitCode.INCOMPATIBLE),
    (errors.StoreUnavailableError, ExitCode.UNREACHABLE),
    (errors.StoreDeniedError, ExitCode.REFUSED),
)

# Errors of lazily imported packages, by class name.
_BY_NAME: dict[str, ExitCode] = {
    "ApiUnavailableError": ExitCode.UNREACHABLE,
    "EngineRefusedError": ExitCode.REFUSED,
    "MissingPermissionError": ExitCode.REFUSED,
    "EngineUnreachableError": ExitCode.UNREACHABLE,
    "PermissionRefusedError": ExitCode.REFUSED,
    "WaitTimedOutError": ExitCode.TIMED_OUT,
}


def exit_code_of(error: errors.CedanaSchedError) -> ExitCode:
    """Return the exit code of a command that raised `error`."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), ExitCode.FAILED)
