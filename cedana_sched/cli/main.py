"""The command `cedana-sched`: assembles the command groups, and exits with the documented exit code.

Each command imports its heavy dependencies lazily, so that `--help` and completion are fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli import attach, engine, jobs, keys, logs, snapshots, store, submit, wait
from cedana_sched.cli.command_registration import GlobalOptions, OutputFormat, StateDirectory
from cedana_sched.cli.doctor import command as doctor
from cedana_sched.cli.exit_codes import MEANINGS
from cedana_sched.cli.program import print_version, run_program

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


@app.callback()
def _global_options(
    context: typer.Context,
    *,
    state_directory: StateDirectory = None,
    output: OutputFormat = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # handled by its callback
    context.obj = GlobalOptions(state_directory, output)


def main() -> None:
    """Entry point of the console script."""
    run_program(app)
