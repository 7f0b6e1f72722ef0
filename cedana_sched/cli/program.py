"""What the programs of the command line have in common: their version, their exit codes, bad command lines."""

from __future__ import annotations

import sys
from typing import Final

import typer

from cedana_sched import __version__
from cedana_sched.cli.errors import CommandLineError
from cedana_sched.cli.exit_codes import ExitCode
from cedana_sched.cli.output import Format, Output
from cedana_sched.model.errors import CedanaSchedError, UsageError

_HELP_PRINTED: Final = "NoArgsIsHelpError"
"""typer's exception, which it does not export, for a command line without a command."""


def print_version(wanted: bool) -> None:  # noqa: FBT001  # the signature of a typer callback
    """Print the version, and exit, if the option was given."""
    if wanted:
        print(f"cedana-sched {__version__}")
        raise typer.Exit


def run_program(app: typer.Typer) -> None:
    """Run the application with the arguments of this process, and exit with the documented code."""
    program = app.info.name or "cedana-sched"
    try:
        code = app(standalone_mode=False, prog_name=program)
    except typer.TyperException as error:  # invalid command line
        if type(error).__name__ != _HELP_PRINTED:
            _report_bad_usage(error, program)
        code = ExitCode.USAGE
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    sys.exit(code or ExitCode.OK)


def _report_bad_usage(error: typer.TyperException, program: str) -> None:
    Output(_requested_format(sys.argv[1:])).print_error(_as_our_error(error, program))


def _as_our_error(error: typer.TyperException, program: str) -> CedanaSchedError:
    """Name option, value and remedy; typer's own message omits a value that it could not convert."""
    from pydantic import ValidationError

    context = getattr(error, "ctx", None)
    remedy = f"see '{context.command_path if context else program} --help'"
    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is None or not isinstance(cause, ValidationError):
        message = getattr(error, "format_message", error.__str__)()
        return CommandLineError(message.rstrip("."), remedy=remedy)
    first = cause.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    message = f"{message[:1].lower()}{message[1:]}"
    return UsageError(parameter.opts[0], first["input"], "cannot be used", remedy=f"{message}; {remedy}")


def _requested_format(arguments: list[str]) -> Format:
    """Return the output format of a command line that typer could not parse."""
    joined = " ".join(arguments).split(" -- ")[0]
    for format_ in (Format.JSON, Format.YAML):
        if any(f"{spelling}{format_}" in joined for spelling in ("-o ", "-o", "--output ", "--output=")):
            return format_
    return Format.TABLE
