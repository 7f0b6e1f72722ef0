"""What a scheduler adds to the webhooks must not cost a replica: its kinds may be absent, or not ours to read yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
import structlog

from cedana_sched.kube.errors import AbsentError, error_of
from cedana_sched_webhooks import schedulers
from cedana_sched_webhooks.schedulers import Handler, ReplicaAccess, SchedulerWebhooks, keep_running

FORBIDDEN = error_of("GET /apis/scheduling.volcano.sh/v1beta1/queues", 403, b'{"message": "cannot list queues"}')


class Toy(SchedulerWebhooks):
    """Ends as it is told to, then runs."""

    name = "toy"

    def __init__(self, *ends: Exception) -> None:
        self._ends = list(ends)
        self.runs = asyncio.Event()

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Toy:
        return cls()

    def handlers(self) -> Mapping[str, Handler]:
        return {}

    async def run(self) -> None:
        if self._ends:
            raise self._ends.pop(0)
        self.runs.set()
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "PAUSE_SECONDS", 0.0)


async def warned(*ends: Exception) -> list[str]:
    """What is said at `warning` until it runs."""
    toy = Toy(*ends)
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(keep_running(toy))
        async with asyncio.timeout(60):
            await toy.runs.wait()
        assert not task.done()
        task.cancel()
    return [one["error"] for one in logs if one["log_level"] == "warning"]


async def test_a_kind_that_may_not_be_read_is_said_once_with_its_remedy_and_tried_again() -> None:
    (said,) = await warned(FORBIDDEN, ExceptionGroup("as of tasks", [FORBIDDEN]), FORBIDDEN)
    assert "cannot list queues" in said
    assert "rights are in the chart's RBAC" in said


async def test_another_problem_is_said_as_well() -> None:
    absent = AbsentError("GET /apis/scheduling.volcano.sh/v1beta1/queues: 404", status=404)
    assert len(await warned(absent, absent, FORBIDDEN, absent)) == 3


async def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await keep_running(Toy(ExceptionGroup("as of tasks", [FORBIDDEN, RuntimeError("a defect")])))
    assert caught.group_contains(RuntimeError)
    assert not caught.group_contains(type(FORBIDDEN))


async def test_after_a_while_of_reading_it_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "WELL_SECONDS", -1.0)
    assert len(await warned(FORBIDDEN, FORBIDDEN)) == 2


class FailsInTheEnd(Toy):
    """The API server goes away while it is cancelled."""

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            raise FORBIDDEN


async def test_who_fails_while_it_is_cancelled_is_not_started_again() -> None:
    toy = FailsInTheEnd()
    task = asyncio.create_task(keep_running(toy))
    await toy.runs.wait()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done == {task}
    assert task.cancelled()
