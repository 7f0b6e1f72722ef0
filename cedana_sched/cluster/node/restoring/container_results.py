"""The results of a plan's containers, as the runtime handler writes them beside the plan."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.cluster.node.restoring.file_waits import wait_for_result
from cedana_sched.model.errors import FilesChangedError, RestoreError
from cedana_sched.runtime_handler import plan as plans
from cedana_sched.runtime_handler.outside_file_rewind import MOST_NOTES
from cedana_sched.runtime_handler.plan import ContainerResult, Plan
from cedana_sched.snapshot.explain import explain_lines


def results_of(folder: str, plan: Plan) -> dict[str, ContainerResult | None]:
    return {name: plans.read_result(folder, name) for name in plan.containers}


def complete_results(folder: str, plan: Plan) -> dict[str, ContainerResult] | None:
    """Return all results, or those known if one of them failed; None while results are missing."""
    known = {name: result for name, result in results_of(folder, plan).items() if result is not None}
    if any(not result.restored for result in known.values()) or len(known) == len(plan.containers):
        return known
    return None


def is_any_restored(folder: str, plan: Plan) -> bool:
    """Return whether a container has been restored, started or not. One that containerd has lost does not count."""
    back = (plans.read_result(folder, name) or plans.read_create_record(folder, name) for name in plan.containers)
    return any(result is not None and result.restored for result in back)


def changed_file_notes(folder: str, plan: Plan) -> tuple[str, ...]:
    """Return the notes of all containers on changed files, of bounded number."""
    notes = [note for result in results_of(folder, plan).values() if result is not None for note in result.notes]
    more = len(notes) - MOST_NOTES
    return (*notes[:MOST_NOTES], *((f"{more} more files have changed",) if more > 0 else ()))


async def wait_while_restoring(folder: str, plan: Plan) -> None:
    """Return when the results are complete, or the restored containers were lost."""

    def look() -> bool | None:
        return complete_results(folder, plan) is not None or not is_any_restored(folder, plan) or None

    await wait_for_result(Path(plans.results_folder(folder)), look)


async def wait_complete_or_lost(folder: str, plan: Plan) -> tuple[dict[str, ContainerResult] | None, list[str]]:
    """Wait until the results are complete; else return None and the containers that containerd has lost.

    See `containerd_lost_containers`. If another container has a result, volumes cannot be filled again: the
    handler publishes the lost ones as failures.
    """

    def look() -> tuple[dict[str, ContainerResult] | None, list[str]] | None:
        if (results := complete_results(folder, plan)) is not None:
            return results, []
        lost = [] if any(results_of(folder, plan).values()) else plans.lost_containers_of(folder, plan)
        return (None, lost) if lost else None

    return await wait_for_result(Path(plans.results_folder(folder)), look)


def error_of(name: str, result: ContainerResult) -> RestoreError:
    """Return the error of a container that was not restored."""
    if result.files_changed:
        return FilesChangedError(f"container {name}: {result.why}")
    if not result.log or not result.tail:  # CRIU has logged nothing
        remedy = f"see {result.log}" if result.log else ""
        return RestoreError(f"container {name}: {result.why}", remedy=remedy, evidence=result.tail)
    found = explain_lines(list(result.tail), 1)
    return RestoreError(f"container {name}: {found.message}", remedy=found.remedy, evidence=found.evidence)
