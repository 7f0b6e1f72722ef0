"""The results of a plan's containers, as the runtime handler writes them beside the plan."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.cluster.node.restoring.files import wait_for_result
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime import plan as plans
from cedana_sched.runtime.plan import Plan, Result
from cedana_sched.snapshot.explain import explain_lines


def results_of(folder: str, plan: Plan) -> dict[str, Result | None]:
    return {name: plans.read_result(folder, name) for name in plan.containers}


def complete(folder: str, plan: Plan) -> dict[str, Result] | None:
    """Return all results, or those known if one of them failed; None while results are missing."""
    known = {name: result for name, result in results_of(folder, plan).items() if result is not None}
    if any(not result.restored for result in known.values()) or len(known) == len(plan.containers):
        return known
    return None


def is_coming_back(folder: str, plan: Plan) -> bool:
    """Return whether a container has been restored, started or not. One that containerd has lost does not count."""
    back = (plans.read_result(folder, name) or plans.read_begun(folder, name) for name in plan.containers)
    return any(result is not None and result.restored for result in back)


async def wait_while_coming_back(folder: str, plan: Plan) -> None:
    """Return when the results are complete, or the restored containers were lost."""

    def look() -> bool | None:
        return complete(folder, plan) is not None or not is_coming_back(folder, plan) or None

    await wait_for_result(Path(plans.results_folder(folder)), look)


async def wait_complete_or_lost(folder: str, plan: Plan) -> tuple[dict[str, Result] | None, list[str]]:
    """Wait until the results are complete; else return None and the containers that containerd has lost.

    See `runtime.lost`. If another container has a result, volumes cannot be filled again: the handler publishes the
    lost ones as failures.
    """

    def look() -> tuple[dict[str, Result] | None, list[str]] | None:
        if (results := complete(folder, plan)) is not None:
            return results, []
        lost = [] if any(results_of(folder, plan).values()) else plans.lost_of(folder, plan)
        return (None, lost) if lost else None

    return await wait_for_result(Path(plans.results_folder(folder)), look)


def error_of(name: str, result: Result) -> RestoreError:
    """Return the error of a container that was not restored."""
    if not result.log or not result.tail:  # CRIU has logged nothing
        remedy = f"see {result.log}" if result.log else ""
        return RestoreError(f"container {name}: {result.why}", remedy=remedy, evidence=result.tail)
    found = explain_lines(list(result.tail), 1)
    return RestoreError(f"container {name}: {found.message}", remedy=found.remedy, evidence=found.evidence)
