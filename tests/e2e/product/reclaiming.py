"""ml takes back what bio has borrowed, so that Kueue preempts bio's Jobs; then it is done, and bio's come back."""

from __future__ import annotations

from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.queues import indexed_job


async def reclaim(namespace: Namespace, image: str, name: str = "train") -> None:
    """Run a Job of ml that needs all that belongs to ml; returns when it is complete."""
    await namespace.apply(indexed_job(name, "ml", image, "python3", "-c", "print('trained')", pods=2))
    await namespace.wait("batch/v1", "Job", name, has_condition("Complete"), within=120)


async def completed(namespace: Namespace, name: str) -> Object:
    """Wait until a Job is over; it must be complete, and none of its pods may have failed."""
    over = await completed_in_the_end(namespace, name)
    assert over["status"].get("failed", 0) == 0, over["status"]
    return over


async def completed_in_the_end(namespace: Namespace, name: str) -> Object:
    """Wait until a Job is over; it must be complete, whatever pods its `backoffLimit` has paid for."""
    over = await namespace.wait("batch/v1", "Job", name, _is_over, within=180)
    assert has_condition("Complete")(over), over["status"]
    return over


def _is_over(body: Object) -> bool:
    return has_condition("Complete")(body) or has_condition("Failed")(body)
