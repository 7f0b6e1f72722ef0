"""Verification of restored processes before their first instruction, because CRIU restores without any checks.

The processes are held meanwhile (`runtime.held`). Standard library only.
"""

from __future__ import annotations

from typing import Any

from cedana_sched.runtime.confinement import confinement_of
from cedana_sched.runtime.credentials import credentials_of
from cedana_sched.runtime.held import Held, HoldError
from cedana_sched.runtime.limits import cap_limits
from cedana_sched.runtime.plan import ContainerPlan
from cedana_sched.runtime.privileges import Privileges, objection_to
from cedana_sched.runtime.volume_files import objection_to_files, read


def look_before_they_run(held: Held, plan: ContainerPlan, spec: dict[str, Any]) -> None:
    """Compare restored processes with their record and their new container; lower their limits to the container's.

    Args:
        held: all processes of the container.
        plan: has the record of the snapshot.
        spec: the config.json of the new container.

    Raises:
        HoldError: the processes must not run.
        OSError: some of their state cannot be read.
    """
    try:
        may = confinement_of(spec)
        files = read(plan.images)
        have = credentials_of(held.processes, may)
    except ValueError as error:
        raise HoldError(str(error)) from error
    if (why := objection_to(Privileges(may, have), may)) is not None:
        raise HoldError(why)
    if (why := objection_to_files(files, held.by_number(), may.groups | {may.group})) is not None:
        raise HoldError(why)
    cap_limits(held.processes, spec)
