"""What became of the containers that a plan continues, as the runtime handler has left it beside the plan."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.cluster.node.returning.files import wait_for_result
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime import plan as plans
from cedana_sched.runtime.plan import Plan, Result
from cedana_sched.snapshot.explain import explain_lines


def results_of(folder: str, plan: Plan) -> dict[str, Result | None]:
    return {name: plans.read_result(folder, name) for name in plan.containers}


def complete(folder: str, plan: Plan) -> dict[str, Result] | None:
    """All results, or the one that failed; None while there are more to come."""
    known = {name: result for name, result in results_of(folder, plan).items() if result is not None}
    if any(not result.restored for result in known.values()) or len(known) == len(plan.containers):
        return known
    return None


def is_coming_back(folder: str, plan: Plan) -> bool:
    """Whether a container has come back, started or not. One that containerd has lost has not."""
    back = (plans.read_result(folder, name) or plans.read_begun(folder, name) for name in plan.containers)
    return any(result is not None and result.restored for result in back)


async def wait_while_coming_back(folder: str, plan: Plan) -> None:
    """Return when they are complete, or those that had come back were lost."""

    def look() -> bool | None:
        return complete(folder, plan) is not None or not is_coming_back(folder, plan) or None

    await wait_for_result(Path(plans.results_folder(folder)), look)


async def wait_complete_or_lost(folder: str, plan: Plan) -> tuple[dict[str, Result] | None, list[str]]:
    """Wait until they are complete; else None and those that containerd has lost: see `runtime.lost`.

    Where another one has had its turn, volumes cannot be laid anew: the handler publishes the lost ones as failures.
    """

    def look() -> tuple[dict[str, Result] | None, list[str]] | None:
        if (results := complete(folder, plan)) is not None:
            return results, []
        lost = [] if any(results_of(folder, plan).values()) else plans.lost_of(folder, plan)
        return (None, lost) if lost else None

    return await wait_for_result(Path(plans.results_folder(folder)), look)


def error_of(name: str, result: Result) -> RestoreError:
    """Why a container did not come back."""
    if not result.log or not result.tail:  # CRIU itself said nothing
        remedy = f"see {result.log}" if result.log else ""
        return RestoreError(f"container {name}: {result.why}", remedy=remedy, evidence=result.tail)
    found = explain_lines(list(result.tail), 1)
    return RestoreError(f"container {name}: {found.message}", remedy=found.remedy, evidence=found.evidence)
