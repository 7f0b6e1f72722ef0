"""The command `kubectl cedana`: kubectl finds the program `kubectl-cedana` on the PATH.

Each command imports its heavy dependencies lazily, so that `--help` and completion are fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli.command_registration import GlobalOptions, OutputFormat
from cedana_sched.cli.exit_codes import MEANINGS
from cedana_sched.cli.kubectl import admin, pods, status
from cedana_sched.cli.program import print_version, run_program

app = typer.Typer(
    name="kubectl cedana",
    help="See what is held, saved and restored in a cluster.",
    no_args_is_help=True,
    add_completion=False,  # kubectl's own has it
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + "; ".join(f"{code.value} {meaning.split(';')[0]}" for code, meaning in MEANINGS.items()),
)
for module in (pods, status, admin):
    module.register(app)


@app.callback()
def _global_options(
    context: typer.Context,
    *,
    output: OutputFormat = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # handled by its callback
    context.obj = GlobalOptions(None, output)


def main() -> None:
    """Entry point of the console script."""
    run_program(app)
