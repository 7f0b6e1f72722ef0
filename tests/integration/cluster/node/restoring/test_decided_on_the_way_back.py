"""A return's deadline passes while its pod is coming back: all of it comes back, or nothing of it runs.

Real runc, CRIU and handler, and the agent's half (`RestoreOrders` over `PodRestorer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cedana_sched.agent.restore_orders import RestoreOrders
from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.model import orders
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.runtime_handler.plan import mark_lost, read_plan, read_result
from tests.integration.cluster.node.pods import Pod
from tests.integration.cluster.node.restoring.conftest import Site
from tests.integration.cluster.node.restoring.counting import COUNTER, save_counting_pod

pytestmark = pytest.mark.criu

_BESIDE = """
import time
while True:
    print("beside")
    time.sleep(0.02)
"""
LATE = "not restored within 600 s"
Decide = Callable[[RestoreOrders, str, Any], Awaitable[orders.Outcome]]


async def _start_cold(returns: RestoreOrders, uid: str, pod: Any) -> orders.Outcome:
    return await returns.start_cold(orders.StartCold(uid, pod, LATE))


async def _give_up(returns: RestoreOrders, uid: str, pod: Any) -> orders.Outcome:
    return await returns.fail_workload(orders.FailWorkload(uid, pod, LATE))


DECISIONS = [
    pytest.param(OnRestoreFailure.COLD_START, _start_cold, id="cold"),
    pytest.param(OnRestoreFailure.FAIL, _give_up, id="fail"),
]


def _returns(site: Site) -> RestoreOrders:
    """The agent's orders over the real `PodRestorer`."""

    class Runtime:
        async def find_running(self, workload: Any) -> RunningWorkload | None:
            return RunningWorkload((), {}, {}, await site.returns.was_restored(workload))

    class Staging:
        def remove(self, uid: str) -> None: ...

    nothing: Any = None
    return RestoreOrders(cast("Any", Runtime()), site.returns, nothing, cast("Any", Staging()), nothing)


def _saved_with_another(site: Site) -> Path:
    pod = site.node.pod("pod-1")
    for name, program in (("main", COUNTER), ("beside", _BESIDE)):
        pod.run(name, program).await_lines(3)
    return site.take(pod)


def _decided_meanwhile(
    site: Site, pod: Pod, images: Path, decide: Decide, before: Callable[[], None], after: Callable[[], None]
) -> orders.Outcome:
    """The outcome of an order that comes between the two, while the agent continues the pod."""
    uid, ref = site.return_of(pod), site.ref(pod)

    async def act() -> orders.Outcome:
        agent = asyncio.create_task(site.returns.restore(uid, ref, images, site.facts))
        await asyncio.to_thread(site.let_start, pod)
        await asyncio.to_thread(before)
        order = asyncio.ensure_future(decide(_returns(site), uid, ref))
        await asyncio.wait({order}, timeout=1)
        await asyncio.to_thread(after)
        outcome = await asyncio.wait_for(order, 60)
        await asyncio.gather(agent, return_exceptions=True)
        return outcome

    return asyncio.run(act())


def _make(pod: Pod, name: str, container: str | None = None) -> None:
    made = pod.container(name)
    made.make(["/bin/echo", "cold"], name=container)


def _started(pod: Pod, name: str) -> Callable[[], None]:
    def start() -> None:
        _make(pod, name)
        pod.containers[name].start()

    return start


@pytest.mark.parametrize(("policy", "decide"), DECISIONS)
def test_pod_of_which_a_container_has_come_back_is_waited_for(
    site: Site, policy: OnRestoreFailure, decide: Decide
) -> None:
    """The image of the other one was still pulled."""
    site.watched.policy = policy
    images = _saved_with_another(site)
    second = site.replacement("pod-2", "main", "beside")
    outcome = _decided_meanwhile(site, second, images, decide, _started(second, "main"), _started(second, "beside"))
    assert isinstance(outcome, orders.RestoreSucceeded)
    for name in ("main", "beside"):
        second.containers[name].await_lines(3)
    assert int(second.containers["main"].lines[0]) > 1
    assert "cold" not in second.containers["beside"].lines


@pytest.mark.parametrize(("policy", "decide"), DECISIONS)
def test_container_that_was_created_and_not_started_yet_is_waited_for(
    site: Site, policy: OnRestoreFailure, decide: Decide
) -> None:
    site.watched.policy = policy
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")

    def create() -> None:
        _make(second, "main")
        second.containers["main"].create()

    def start() -> None:
        site.node.runc("start", second.containers["main"].id)

    assert isinstance(_decided_meanwhile(site, second, images, decide, create, start), orders.RestoreSucceeded)
    second.containers["main"].await_progress()


def test_what_is_given_up_before_its_start_has_not_run(site: Site) -> None:
    """Its scheduler preempts it in that moment: what it had done by then would be done twice."""
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    uid, ref = site.return_of(second), site.ref(second)

    async def act() -> None:
        agent = asyncio.create_task(site.returns.restore(uid, ref, images, site.facts))
        await asyncio.to_thread(site.let_start, second)
        _make(second, "main")
        await asyncio.to_thread(second.containers["main"].create)
        await site.returns.cancel_restore("pod-2")
        with pytest.raises(AssertionError):
            await asyncio.to_thread(site.node.runc, "start", second.containers["main"].id)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)

    asyncio.run(act())
    second.containers["main"].join()  # its output has ended
    assert second.containers["main"].lines == []


def test_what_was_lost_meanwhile_begins_anew(site: Site) -> None:
    """It had come back, and containerd has killed it: nothing of the pod runs from its snapshot any more."""
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")

    def create() -> None:
        _make(second, "main")
        second.containers["main"].create()

    def lose() -> None:
        site.node.runc("delete", "--force", second.containers["main"].id)
        mark_lost(str(site.state / "pods/pod-2"), "main")

    outcome = _decided_meanwhile(site, second, images, _start_cold, create, lose)
    assert isinstance(outcome, orders.StartedCold)
    _make(second, "main1", "main")
    second.containers["main1"].start()
    second.containers["main1"].join()
    assert second.containers["main1"].lines == ["cold"]


def test_what_is_given_up_before_its_create_never_runs(site: Site) -> None:
    _, images = save_counting_pod(site)
    site.watched.policy = OnRestoreFailure.FAIL
    second = site.replacement("pod-2", "main")

    def create() -> None:
        _make(second, "main")
        with pytest.raises(AssertionError, match=LATE):
            second.containers["main"].create()

    outcome = _decided_meanwhile(site, second, images, _give_up, lambda: None, create)
    assert isinstance(outcome, orders.WorkloadFailed)
    assert second.containers["main"].lines == []


@pytest.mark.parametrize("policy", OnRestoreFailure)
def test_what_came_back_ends_with_the_one_that_did_not(site: Site, policy: OnRestoreFailure) -> None:
    """`RestoreFailed` says that nothing of the processes runs."""
    site.watched.policy = policy
    images = _saved_with_another(site)
    for image in (images / "beside").glob("mm-*.img"):
        image.write_bytes(b"")
    second = site.replacement("pod-2", "main", "beside")
    uid, ref = site.return_of(second), site.ref(second)

    def start() -> None:
        _started(second, "main")()
        second.containers["main"].await_lines(3)
        _make(second, "beside")
        with pytest.raises(AssertionError, match="criu failed"):
            second.containers["beside"].create()

    async def act() -> None:
        agent = asyncio.create_task(site.returns.restore(uid, ref, images, site.facts))
        await asyncio.to_thread(site.let_start, second)
        await asyncio.to_thread(start)
        with pytest.raises(RestoreError, match="container beside"):
            await agent

    asyncio.run(act())
    second.containers["main"].join()  # its output has ended
    is_cold = policy is OnRestoreFailure.COLD_START
    for name in ("main", "beside"):
        result = read_result(str(site.state / "pods/pod-2"), name)
        assert result is not None
        assert (result.restored, result.cold) == (False, is_cold), name
    if is_cold:
        _make(second, "main1", "main")
        second.containers["main1"].start()
        second.containers["main1"].join()
        assert second.containers["main1"].lines == ["cold"]
    plan = read_plan(str(site.state / "pods/pod-2"))
    assert plan is not None
