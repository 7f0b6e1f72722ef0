"""The command `cedana-sched`: assembles the command groups, and exits with the documented exit code.

Each command imports its heavy dependencies lazily, so that `--help` and completion are fast.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cedana_sched import __version__
from cedana_sched.cli import attach, engine, jobs, keys, logs, snapshots, store, submit, wait
from cedana_sched.cli.command_registration import GlobalOptions, OutputFormat, StateDirectory
from cedana_sched.cli.doctor import command as doctor
from cedana_sched.cli.errors import CommandLineError
from cedana_sched.cli.exit_codes import MEANINGS, ExitCode
from cedana_sched.cli.output import Format, Output
from cedana_sched.model.errors import CedanaSchedError, UsageError

app = typer.Typer(
    name="cedana-sched",
    help="Run jobs that survive preemption: frozen, streamed to storage, and continued where they stopped.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + "; ".join(f"{code.value} {meaning.split(';')[0]}" for code, meaning in MEANINGS.items()),
)
app.add_typer(engine.app, name="engine")
for module in (submit, jobs, logs, attach, wait):
    module.register(app)
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(store.app, name="store")
app.add_typer(keys.app, name="keys")
doctor.register(app)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  # the signature of a typer callback
    if wanted:
        print(f"cedana-sched {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    *,
    state_directory: StateDirectory = None,
    output: OutputFormat = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # handled by its callback
    context.obj = GlobalOptions(state_directory, output)


def main() -> None:
    """Entry point of the console script."""
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:  # invalid command line
        _report_bad_usage(error)
        code = ExitCode.USAGE
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    sys.exit(code or ExitCode.OK)


def _report_bad_usage(error: typer.TyperException) -> None:
    Output(_requested_format(sys.argv[1:])).print_error(_as_our_error(error))


def _as_our_error(error: typer.TyperException) -> CedanaSchedError:
    """Name option, value and remedy; typer's own message omits a value that it could not convert."""
    from pydantic import ValidationError

    context = getattr(error, "ctx", None)
    remedy = f"see '{context.command_path if context else 'cedana-sched'} --help'"
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
    spellings = ("-o json", "-ojson", "--output json", "--output=json")
    return Format.JSON if any(spelling in joined for spelling in spellings) else Format.TABLE
