"""Bounds of a job's environment: what execve(2) takes, and what each write of the job's record can afford.

Errors name variables, and never their values: these may be secrets.
"""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.model.errors import UsageError

MOST_VARIABLES = 4096
MOST_BYTES = 256 << 10
"""Of all names and values. The journal writes a job's environment at each change of the job."""
MOST_BYTES_EACH = 128 << 10
"""Of one `NAME=value` with its terminating NUL: the kernel's MAX_ARG_STRLEN."""
_MOST_NAME_SHOWN = 64


def require_valid_environment(environment: Mapping[str, str]) -> None:
    """Check a job's environment.

    Raises:
        UsageError: a name or a value is not what execve(2) takes, or there is too much.
    """
    if len(environment) > MOST_VARIABLES:
        raise UsageError("env", len(environment), "is too many variables", remedy=_fewer(f"{MOST_VARIABLES} variables"))
    total = 0
    for name, value in environment.items():
        shown = name[:_MOST_NAME_SHOWN]
        if not name or "=" in name or "\0" in name:
            raise UsageError("env", shown, "is no variable's name", remedy="write a name without '=' and NUL")
        if "\0" in value:
            raise UsageError(f"env.{shown}", "…", "has a NUL character", remedy="leave the variable out")
        size = len(name.encode()) + len(value.encode()) + 2
        if size > MOST_BYTES_EACH:
            remedy = f"a variable has at most {MOST_BYTES_EACH} bytes; pass the content in a file"
            raise UsageError(f"env.{shown}", f"{size} bytes", "is too long", remedy=remedy)
        total += size
    if total > MOST_BYTES:
        raise UsageError("env", f"{total} bytes", "is too much", remedy=_fewer(f"{MOST_BYTES} bytes"))


def _fewer(most: str) -> str:
    return f"a job's environment has at most {most}; name the variables that it needs: --export NAME,NAME"
