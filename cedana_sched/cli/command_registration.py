"""Registration of functions as commands, with a session, the common options, and error reports."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.exit_codes import ExitCode, exit_code_of
from cedana_sched.cli.option_group import is_option_group
from cedana_sched.cli.output import Format, Output
from cedana_sched.model.errors import CedanaSchedError

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, None] | None])

STATE_DIRECTORY_VARIABLE = "CEDANA_SCHED_STATE_DIR"

StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Directory of the engine's state.",
        show_default="/var/lib/cedana-sched",
        envvar=STATE_DIRECTORY_VARIABLE,
        rich_help_panel="Everywhere",
    ),
]
OutputFormat = Annotated[
    Format | None,
    typer.Option("--output", "-o", help="How data is printed.", show_default="table", rich_help_panel="Everywhere"),
]


@dataclass(frozen=True)
class GlobalOptions:
    """Options before the command's name; the same option after the name takes precedence."""

    state_directory: Path | None
    output: Format | None


def command(
    app: typer.Typer, name: str | None = None, *, is_of_engine: bool = True, **settings: Any
) -> Callable[[F], F]:
    """Register `body(session, …)`, a function or a coroutine function, as a command of `app`.

    Args:
        app: gets the command.
        name: of the command; by default that of the function.
        is_of_engine: whether the command has the option `--state-dir`.
        settings: of typer.
    """

    def register(body: F) -> F:
        parameters = inspect.signature(body, eval_str=True).parameters.values()
        groups = {one.name: one.annotation for one in parameters if is_option_group(one.annotation)}

        @functools.wraps(body)
        def run(
            context: typer.Context, *, output: Format | None, state_directory: Path | None = None, **given: Any
        ) -> None:
            session = _build_session(context, output, state_directory)
            given |= {name: group.pop_from_arguments(given) for name, group in groups.items()}
            with reported_errors(session.output):
                result = body(session, **given)
                if result is not None:
                    asyncio.run(result)

        _set_signature(run, body, is_of_engine=is_of_engine)
        app.command(name, **settings)(run)
        return body

    return register


@contextmanager
def reported_errors(output: Output) -> Iterator[None]:
    """Report a `CedanaSchedError` and exit with its code. Other exceptions are bugs and keep their traceback."""
    try:
        yield
    except CedanaSchedError as error:
        output.print_error(error)
        raise typer.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from interrupt
    except BrokenPipeError as broken:  # the reader of stdout has exited, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.OK) from broken


def _build_session(context: typer.Context, output: Format | None, state_directory: Path | None) -> CommandContext:
    before = context.obj if isinstance(context.obj, GlobalOptions) else GlobalOptions(None, None)
    chosen = output or before.output or Format.TABLE
    return CommandContext(Output(chosen), state_directory or before.state_directory)


def _set_signature(run: Callable[..., None], body: Callable[..., Any], *, is_of_engine: bool) -> None:
    """Set the signature of `run` for typer: that of `body` without the session, plus the common options.

    A parameter that is a group of options is expanded to them.
    """
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    parameters = [_option_parameter("context", typer.Context, inspect.Parameter.empty)]
    parameters += [
        _option_parameter(one.name, one.annotation, one.default) for one in own if not is_option_group(one.annotation)
    ]
    for group in (one.annotation for one in own if is_option_group(one.annotation)):
        parameters += [_option_parameter(name, *option) for name, option in group.options.items()]
    parameters.append(_option_parameter("output", OutputFormat, None))
    if is_of_engine:
        parameters.append(_option_parameter("state_directory", StateDirectory, None))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect.signature honours the attribute
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _option_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
