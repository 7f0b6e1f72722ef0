"""Decisions about a pod whose containers may be restored at this very moment.

The handler holds a pod's lock (`runtime.lost.turn`) from its read of the plan until it has acted on the plan. With the
lock held, no `create` is in flight: a restored container shows, and no other is restored once the plan forbids it. So a
pod is never mixed: all containers of the snapshot are restored, or none of them runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import Enum
from functools import partial
from typing import TypeVar

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.description import freezer_of
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.restoring.outcomes import complete, is_coming_back, results_of
from cedana_sched.runtime import plan as plans
from cedana_sched.runtime.lost import turn
from cedana_sched.runtime.plan import COLD, FORGO, RESTORE, Plan, Result
from cedana_sched.snapshot import freezer

log = structlog.get_logger(__name__)

TURN_SECONDS = 0.2
"""Retry interval while a `create` is in flight; no event shows its end."""

T = TypeVar("T")


class Standing(Enum):
    """Progress of a pod's restore at a decision against it."""

    DECIDED = "no container is restored, nor will be"
    COMING_BACK = "some of its containers are restored, and the others may be"
    COMPLETE = "all are restored, or one of them was not"
    DELETED = "it was deleted, and is forgone"


class Turns:
    """Decides under the locks of this node's pods."""

    def __init__(self, places: Places, bundles: Bundles) -> None:
        self._places = places
        self._bundles = bundles

    async def decide(self, pod_uid: str, folder: str, decided: Plan) -> Standing:
        """Replace the pod's plan with this one, unless a container has been restored.

        Raises:
            FreezerError: processes left by a killed `create` do not exit.
        """
        return await _in_turn(folder, partial(self._decide, pod_uid, folder, decided))

    async def end_together(self, pod_uid: str, folder: str, plan: Plan) -> None:
        """Kill the containers restored beside one that failed; the pod's later containers all start alike.

        Raises:
            FreezerError: some process did not exit in time.
        """
        await _in_turn(folder, partial(self._end_together, pod_uid, folder, plan))

    def _decide(self, pod_uid: str, folder: str, decided: Plan) -> Standing:
        plan = plans.read_plan(folder)
        if plan is not None and plan.decision == FORGO:
            return Standing.DELETED
        if plan is not None and plan.decision == RESTORE:
            if complete(folder, plan) is not None:
                return Standing.COMPLETE
            if is_coming_back(folder, plan):
                return Standing.COMING_BACK
        plans.write_plan(folder, decided)
        self._end(pod_uid, [name for name in decided.containers if plans.read_begun(folder, name) is not None])
        return Standing.DECIDED

    def _end_together(self, pod_uid: str, folder: str, plan: Plan) -> None:
        results = results_of(folder, plan)
        failed = next((name for name, result in results.items() if result is not None and not result.restored), None)
        if failed is None or not (is_coming_back(folder, plan) or self._continued(pod_uid, plan.containers)):
            return
        why = f"container {failed}, which the snapshot has as well, was not restored"
        log.warning("restored containers are ended", pod=pod_uid, why=why)
        for name, result in results.items():
            known = result if result is not None and not result.restored else Result(restored=False, why=why)
            plans.write_result(folder, name, known._replace(cold=plan.fallback == COLD))
            plans.forget_begun(folder, name)
        self._end(pod_uid, self._continued(pod_uid, plan.containers))

    def _continued(self, pod_uid: str, names: Collection[str]) -> list[str]:
        found = self._bundles.of_pod(pod_uid)
        return [container.name for container in found if container.continued and container.name in names]

    def _end(self, pod_uid: str, names: Collection[str]) -> None:
        """Kill the running ones of these containers."""
        for container in self._bundles.of_pod(pod_uid) if names else ():
            if container.name in names:
                freezer.kill(self._places.here(freezer_of(container.state)))


async def _in_turn(folder: str, act: Callable[[], T]) -> T:
    """Run `act` in a thread while no `create` of the pod is in flight."""

    def take() -> T:
        with turn(folder, wait=False):
            return act()

    while True:
        try:
            return await asyncio.to_thread(take)
        except BlockingIOError:  # a thread that blocked would be one less for all others
            await asyncio.sleep(TURN_SECONDS)
