"""Shell completion of job names and snapshot references, from the running engine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cedana_sched.cli.command_registration import STATE_DIRECTORY_VARIABLE
from cedana_sched.model.errors import CedanaSchedError

if TYPE_CHECKING:
    from cedana_sched.local.views import JobView

PATIENCE_SECONDS = 0.5


def job_names(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return job names with the prefix `incomplete`, each with its job's phase."""
    return [(job.name, job.phase) for job in _fetch_jobs_or_nothing(context) if job.name.startswith(incomplete)]


def snapshot_references(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the newest snapshots of the engine's jobs with the prefix `incomplete`, each with its job's name."""
    made = ((job.checkpoint.snapshot, job.name) for job in _fetch_jobs_or_nothing(context) if job.checkpoint)
    return [(snapshot, name) for snapshot, name in made if snapshot and snapshot.startswith(incomplete)]


def _fetch_jobs_or_nothing(context: typer.Context) -> list[JobView]:
    # silent on failure: completion cannot show errors, and the command itself reports them
    try:
        return asyncio.run(_fetch_jobs(_state_directory(context)))
    except (CedanaSchedError, TimeoutError, OSError):
        return []


def _state_directory(context: typer.Context) -> Path | None:
    root = context.find_root().params.get("state_directory")
    chosen = context.params.get("state_directory") or root or os.environ.get(STATE_DIRECTORY_VARIABLE)
    return Path(chosen) if chosen else None


async def _fetch_jobs(state_directory: Path | None) -> list[JobView]:
    from cedana_sched.local.client import DEFAULT_STATE_DIRECTORY, EngineClient

    async with asyncio.timeout(PATIENCE_SECONDS), EngineClient(state_directory or DEFAULT_STATE_DIRECTORY) as client:
        return await client.jobs()
