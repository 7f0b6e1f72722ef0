"""`cedana-sched submit`: queue a command line as a job."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli import arguments, units
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.job_environment import export_environment, parse_assignments
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE, validate_name

if TYPE_CHECKING:
    from cedana_sched.local.views import JobView

# all words after the first one of the job's command are the job's, with or without '--' before the command
_SETTINGS = {"allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    command(app, context_settings=_SETTINGS)(submit)


async def submit(
    session: CommandContext,
    argv: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run; write -- before it.")],
    *,
    group: Annotated[str, typer.Option("--group", "-g", help="The group whose quota pays.")],
    checkpoint_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help=f"Checkpoint id: the job continues from this id's newest snapshot. Also ${CHECKPOINT_VARIABLE}.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.", show_default="from the command")] = None,
    cpus: Annotated[str, typer.Option(help="Processors of one replica, such as 0.5.")] = "1",
    memory: Annotated[str, typer.Option(help="Memory of one replica, such as 2Gi.")] = "512Mi",
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    replicas: Annotated[int, typer.Option(help="Processes that start, freeze and end together.")] = 1,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="KEY[=VALUE]", help="Set a variable, or pass on your own."),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="ALL|NONE|NAME[=VALUE],...",
            help="Which of your variables the job gets, as in sbatch.",
            show_default="ALL; NONE with --user",
        ),
    ] = None,
    cwd: Annotated[Path | None, typer.Option(help="Working directory.", show_default="this one")] = None,
    user: Annotated[str | None, typer.Option(help="User to run as.", show_default="the engine's")] = None,
    stdout: Annotated[
        Path | None, typer.Option(help="File for standard output, opened by the rights of the job's user.")
    ] = None,
    stderr: Annotated[Path | None, typer.Option(help="File for standard error, likewise.")] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Longest time from a preemption's notice until the job must go."),
    ] = None,
    on_volume_change: Annotated[
        str | None,
        typer.Option(
            metavar="Rewind|ColdStart|Fail",
            help="What follows if its files ran ahead of the snapshot that it is restored from.",
            show_default="the group's",
        ),
    ] = None,
    tty: Annotated[bool, typer.Option("--tty", help="Give the job a terminal; see 'attach'.")] = False,
    wait: arguments.Wait = False,
    timeout: arguments.Timeout = None,
) -> None:
    """Queue a job.

    Options stand before the command, for example: submit --group bio --id md -- gmx mdrun -v
    """
    from cedana_sched.cli.job_watch import wait_for_end
    from cedana_sched.local.views import Submission

    variables = parse_assignments("env", env or [], os.environ)
    exported = export_environment(export, os.environ, as_another_user=user is not None)
    if exported.undecodable:
        session.output.print_note(
            f"not exported, because their values are not UTF-8: {', '.join(exported.undecodable)}"
        )
    patience = units.parse_duration("timeout", timeout) if timeout else None
    submission = Submission(
        argv=tuple(argv),
        group=group,
        name=name,
        id=choose_checkpoint_id(checkpoint_id, exported.variables | variables, os.environ),
        cpus=cpus,
        memory=memory,
        priority=priority,
        replicas=replicas,
        env=exported.variables | variables,
        cwd=str((cwd or Path.cwd()).absolute()),
        user=user,
        stdout=str(stdout.absolute()) if stdout else None,
        stderr=str(stderr.absolute()) if stderr else None,
        deadline_seconds=units.parse_duration("deadline", deadline) if deadline else None,
        on_volume_change=on_volume_change,
        tty=tty,
    )
    async with session.client() as client:
        job = await client.submit(submission)
        if wait:
            session.output.print_note(f"submitted {job.name} ({job.uid})")
            job = await wait_for_end(client, job, session.output, patience)
    session.output.print_result(job, lambda: _outcome_line(job) if wait else job.uid)


def choose_checkpoint_id(option: str | None, variables: Mapping[str, str], caller: Mapping[str, str]) -> str | None:
    """Return the checkpoint id: `--id` or the job's variable, which must be equal; else the caller's own variable.

    Raises:
        UsageError: option and variable differ, or the id has invalid characters.
    """
    named = variables.get(CHECKPOINT_VARIABLE)
    if option is not None and named is not None and option != named:
        raise UsageError(
            "id", option, f"differs from {CHECKPOINT_VARIABLE}={named} in --env", remedy="give one of the two"
        )
    chosen = option if option is not None else named if named is not None else caller.get(CHECKPOINT_VARIABLE)
    return validate_name("id", chosen) if chosen is not None else None


def _outcome_line(job: JobView) -> str:
    lasted = job.ended_at - job.submitted_at if job.ended_at else time.time() - job.submitted_at
    saved = f", {units.format_duration(job.work_saved_seconds)} of work saved" if job.work_saved_seconds else ""
    return f"{job.name} {job.phase} after {units.format_duration(lasted)}{saved}"
