"""Pods whose sandbox dies, that are deleted, or that their kubelet starts by itself, while they come back."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.cluster.node.restoring.restore_states import IncarnationEndedError
from cedana_sched.model.errors import RestoreError
from tests.integration.cluster.node.pods import Pod
from tests.integration.cluster.node.restoring.conftest import Site
from tests.integration.cluster.node.restoring.counting import COUNTER, save_counting_pod

pytestmark = pytest.mark.criu


def _returned(site: Site) -> tuple[Pod, Path]:
    """A pod that was continued, and has done more since; and the images, as they would be fetched once more."""
    _, images = save_counting_pod(site)
    again = images.parent / "fetched-again"
    shutil.copytree(images, again, symlinks=True)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    second.containers["main"].await_lines(3)
    (second.volume / "later").write_text("made after the snapshot")
    return second, again


def test_a_pod_whose_sandbox_is_made_anew_continues_once_more(site: Site) -> None:
    second, images = _returned(site)
    before = [int(line) for line in second.containers["main"].lines]
    second.end()
    third = site.node.pod("pod-2", 1)
    assert not asyncio.run(site.returns.was_restored(site.ref(third)))

    assert site.bring_back(third, images, "main") is None

    again = third.containers["main"]
    again.await_lines(3)
    assert int(again.lines[0]) == before[0], "it continues where the snapshot was taken, and not from its beginning"
    assert not (third.volume / "later").exists()
    numbers = [int(line) for line in (third.volume / "number").read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert asyncio.run(site.returns.was_restored(site.ref(third)))


def test_nothing_starts_in_a_new_sandbox_before_it_is_decided(site: Site) -> None:
    """A restore container of an earlier version reads what was decided for the old sandbox, and ends."""
    second, _ = _returned(site)
    second.end()
    third = site.node.pod("pod-2", 1)
    main = third.container("main")
    main.make(["/bin/echo", "cold"])
    with pytest.raises(AssertionError, match="sandbox was made anew, and what becomes of the pod"):
        main.start()
    assert not main.lines


def test_a_pod_that_begins_again_and_cannot_continue_begins_cold_in_its_new_sandbox(site: Site) -> None:
    second, _ = _returned(site)
    second.end()
    third = site.node.pod("pod-2", 1)
    with ThreadPoolExecutor() as pool:
        agent = pool.submit(
            asyncio.run, site.returns.start_cold(site.return_of(third), site.ref(third), "the snapshot is gone")
        )
        said = site.let_start(third, "main")
        agent.result(30)
    assert "starting from the beginning: the snapshot is gone" in said
    main = third.containers["main"]
    main.await_lines(1)
    assert main.lines == ["cold"]


def test_return_of_a_sandbox_that_is_gone_does_nothing_in_the_next_one(site: Site) -> None:
    """Its order may still be under way, also after a reboot: what lies on /run is gone then, the note is not."""
    second, images = _returned(site)
    second.end()
    third = site.node.pod("pod-2", 1)
    shutil.rmtree(site.state / "pods")
    waiting = site.wait_in(third)
    site.returns = PodRestorer(
        site.node.places,
        site.state,
        site.folder / "data",
        site.toolchain,
        site.watched,
        site.returns._preparation._restore_seconds,
    )
    first, pod = site.return_of(second), site.ref(third)
    for order in (
        site.returns.restore(first, pod, images, site.facts),
        site.returns.start_cold(first, pod, "it took too long"),
        site.returns.fail_workload(first, pod, "it took too long"),
    ):
        with pytest.raises(IncarnationEndedError):
            asyncio.run(order)
    assert waiting.poll() is None
    asyncio.run(site.returns.start_cold(site.return_of(third), pod, "there is another return"))
    said, _ = waiting.communicate(timeout=30)
    assert "another return" in said


def test_sandbox_that_dies_while_its_pod_waits_is_followed_by_the_same_return(site: Site) -> None:
    """Nothing was decided in it: the order is for whichever comes."""
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    uid = site.return_of(second)
    died = site.wait_in(second)
    asyncio.run(RestoreContainerMessages("pod-2", site.node.places).wait_until_running())
    died.kill()
    died.communicate()
    second.end()
    third = site.node.pod("pod-2", 1)
    with ThreadPoolExecutor() as pool:
        agent = pool.submit(asyncio.run, site.returns.restore(uid, site.ref(third), images, site.facts))
        said = site.let_start(third, "main")
        agent.result(30)
    assert "continuing from the snapshot" in said
    served = site.returns.served_incarnations.record_of("pod-2")
    assert served is not None
    assert (served.restore, served.sandbox) == (uid, third.sandbox)


def test_restore_container_that_failed_is_continued_by_the_next_return_in_the_same_sandbox(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    with ThreadPoolExecutor() as pool:
        agent = pool.submit(asyncio.run, site.returns.fail_workload("r1", site.ref(second), "the store is away"))
        failed = site.wait_in(second)
        said, _ = failed.communicate(timeout=30)
        agent.result(30)
        assert "not started: the store is away" in said
        agent = pool.submit(asyncio.run, site.returns.restore("r2", site.ref(second), images, site.facts))
        again, _ = site.wait_in(second, attempt=1).communicate(timeout=30)
        assert "continuing from the snapshot" in again
        main = second.container("main")
        main.make(["/bin/echo", "cold"])
        main.start()
        agent.result(30)
    assert asyncio.run(site.returns.was_restored(site.ref(second)))


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "past its deadline"])
def test_pod_that_is_deleted_on_its_way_back_does_not_run(site: Site, is_late: bool) -> None:
    first, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    counted = (first.volume / "number").read_text().split()

    async def continued() -> None:
        agent = asyncio.create_task(site.returns.restore(site.return_of(second), site.ref(second), images, site.facts))
        waiting = await asyncio.to_thread(site.wait_in, second)
        assert "continuing" in (await asyncio.to_thread(waiting.communicate, timeout=30))[0]
        await site.returns.cancel_restore(second.uid)
        orders = [agent]
        if is_late:
            cold = site.returns.start_cold(site.return_of(second), site.ref(second), "it took too long")
            orders.append(asyncio.create_task(cold))
            await asyncio.wait(orders, timeout=1)
        again = second.container("main")
        again.make(["/bin/echo", "cold"])
        with pytest.raises(AssertionError, match="its pod has been deleted"):
            await asyncio.to_thread(again.start)
        for order in orders:
            order.cancel()
        await asyncio.gather(*orders, return_exceptions=True)

    asyncio.run(continued())
    assert second.containers["main"].lines == []
    assert (second.volume / "number").read_text().split() == counted


def test_pod_that_its_kubelet_has_started_already_is_not_continued_over_it(site: Site) -> None:
    """A kubelet whose node rebooted while it created a container starts all of a pod's containers at once."""
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    waiting = site.wait_in(second)
    second.run("main", COUNTER).await_lines(3)

    with pytest.raises(RestoreError, match="has started main although the restore container still waits"):
        asyncio.run(site.returns.restore(site.return_of(second), site.ref(second), images, site.facts))
    numbers = (second.volume / "number").read_text().split()
    assert numbers[:3] == ["1", "2", "3"], "its files are its own"
    asyncio.run(site.returns.start_cold(site.return_of(second), site.ref(second), "it runs already"))
    assert "it runs already" in waiting.communicate(timeout=30)[0]
