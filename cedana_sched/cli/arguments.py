"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli import completion

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Name, checkpoint id, or the beginning of the uid.",
        autocompletion=completion.job_names,
    ),
]
SNAPSHOT_FORM = r"namespace/id\[/index\[/container]]@generation."
"""The form of a snapshot reference in help texts, with brackets escaped for rich's markup."""
Reference = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help=SNAPSHOT_FORM,
        autocompletion=completion.snapshot_references,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Stop waiting after this time (90s, 5m, 1h30m); exit code 5."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done.")]
