"""The environment that `submit` gives to a job: `--export`, as sbatch has it, and `--env`.

A job of the submitter's own user gets the submitter's environment, so that it finds the programs of an activated
virtual environment. A job of another user gets none of it, unless `--export` says so: it may hold secrets.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import msgspec

from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE

ALL, NONE = "ALL", "NONE"

_ENGINES = "CEDANA_SCHED_*"
_NOT_IN_ALL = (
    _ENGINES,  # configuration of the engine and of this command line
    CHECKPOINT_VARIABLE,  # has become the job's id already, unless --id is another one
    "_", "PWD", "OLDPWD",  # what the submitter's shell did last
    "NOTIFY_SOCKET", "WATCHDOG_*", "LISTEN_FDS*", "LISTEN_PID", "LISTEN_FDNAMES",  # the submitter's service manager
    "STY", "TMUX", "TMUX_PANE", "SSH_TTY", "GPG_TTY", "WINDOWID",  # the submitter's terminal
)  # fmt: skip
_SUBMITTERS_LOGIN = (
    "HOME", "USER", "LOGNAME", "SHELL", "MAIL", "XDG_*", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "SSH_AGENT_PID",
    "XAUTHORITY", "KRB5CCNAME", "GNUPGHOME", "SUDO_*",
)  # fmt: skip
"""Not part of `ALL` for a job of another user: the engine sets them from the user's account, or they are of no use."""


class ExportedEnvironment(msgspec.Struct, frozen=True):
    """The variables of a job, and the names of those that `ALL` includes but a job cannot get."""

    variables: dict[str, str]
    undecodable: tuple[str, ...] = ()
    """Their values are not UTF-8."""


def export_environment(
    export: str | None, caller: Mapping[str, str], *, as_another_user: bool = False
) -> ExportedEnvironment:
    """Return the variables that `--export` selects from the caller's environment.

    Args:
        export: `ALL`, `NONE`, or a comma-separated list of NAME, NAME=value and ALL; None is the default.
        caller: the submitter's environment.
        as_another_user: whether the job has a `--user`; the default is then `NONE`, else `ALL`.

    Raises:
        UsageError: a name is empty, not set, given twice, or the engine's own.
    """
    if export is None:
        export = NONE if as_another_user else ALL
    words = export.split(",")
    if NONE in words:
        if len(words) > 1:
            raise UsageError("export", export, "names NONE beside others", remedy="write NONE alone, or leave it out")
        return ExportedEnvironment({})
    assignments = [word for word in words if word != ALL]
    for word in assignments:
        if fnmatch.fnmatchcase(word.partition("=")[0], _ENGINES):
            raise UsageError("export", word, "is the engine's own", remedy="leave it out: jobs do not get it")
    named = parse_assignments("export", assignments, caller)
    if ALL not in words:
        return ExportedEnvironment(named)
    left_out = _NOT_IN_ALL + (_SUBMITTERS_LOGIN if as_another_user else ())
    everything = {
        name: value
        for name, value in caller.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out)
    }
    undecodable = tuple(sorted(name for name, value in everything.items() if not _is_unicode(name + value)))
    return ExportedEnvironment(
        {name: value for name, value in everything.items() if name not in undecodable} | named, undecodable
    )


def parse_assignments(field: str, assignments: list[str], caller: Mapping[str, str]) -> dict[str, str]:
    """Parse variables: `NAME=VALUE`, or `NAME` alone for the value in the caller's environment.

    Raises:
        UsageError: a name is empty, has two different values, or is not set in the caller's environment.
    """
    variables: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name:
            raise UsageError(field, assignment, "has no name", remedy=f"write --{field} NAME=VALUE")
        if not equals and name not in caller:
            raise UsageError(field, name, "is not set here", remedy=f"write --{field} {name}=VALUE")
        chosen = value if equals else caller[name]
        if not _is_unicode(chosen):
            raise UsageError(field, name, "has a value that is not UTF-8", remedy="set it in the job itself")
        if variables.setdefault(name, chosen) != chosen:
            raise UsageError(field, assignment, "gives a second value", remedy=f"give {name} once")
    return variables


def _is_unicode(text: str) -> bool:
    """Return whether the text is what the JSON of a submission can carry: bytes that are not UTF-8 are surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
