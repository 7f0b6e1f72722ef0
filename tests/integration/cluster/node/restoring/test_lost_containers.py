"""Containers that have come back, and that containerd has lost: they come back once more.

Containerd has ended before it had written down the `create`, or while it started one: the kubelet has the container
created anew.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cedana_sched.cluster.node.restoring.pod_order_serializer import OvertakenError
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.plan import ContainerResult, read_create_record, write_create_record
from cedana_sched.snapshot import freezer
from tests.integration.cluster.node.pods import Container, Pod
from tests.integration.cluster.node.restoring.conftest import Site
from tests.integration.cluster.node.restoring.counting import COUNTER, save_counting_pod

pytestmark = pytest.mark.criu

_BESIDE = """
import time
while True:
    print("beside")
    time.sleep(0.02)
"""
"""It has no file in common with the counter."""


@contextmanager
def _returning(site: Site, pod: Pod, images: Path) -> Iterator[Future[None]]:
    """An agent that continues a pod, whose restore container has ended."""
    with ThreadPoolExecutor() as pool:
        agent = pool.submit(asyncio.run, site.returns.restore(site.return_of(pod), site.ref(pod), images, site.facts))
        site.let_start(pod)
        yield agent


def _made(pod: Pod, name: str, container: str | None = None) -> Container:
    made = pod.container(name)
    made.make(["/bin/echo", "cold"], name=container)
    return made


def _lost(pod: Pod, name: str = "main") -> Container:
    """One that has come back and is never started."""
    lost = _made(pod, name)
    lost.create()
    return lost


def _saved_with_another(site: Site) -> Path:
    pod = site.node.pod("pod-1")
    for name, program in (("main", COUNTER), ("beside", _BESIDE)):
        pod.run(name, program).await_lines(3)
    return site.take(pod)


def _assert_counted_on(pod: Pod, lost: Container, again: Container) -> None:
    lost.join()
    again.await_lines(3)
    assert not lost.lines, "it waited for its start"
    numbers = [int(line) for line in (pod.volume / "number").read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1)), "what the lost one has written is not there"


def test_container_that_containerd_loses_before_its_start_comes_back_once_more(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    with _returning(site, second, images) as agent:
        lost = _lost(second)
        assert not agent.done(), "it has not been started"
        again = _made(second, "main1", "main")
        again.start()
        assert agent.exception(30) is None
    _assert_counted_on(second, lost, again)


def test_container_whose_runtime_was_killed_after_it_had_come_back_is_lost(site: Site) -> None:
    """Its result was not written yet."""
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    folder = str(site.state / "pods/pod-2")
    with _returning(site, second, images) as agent:
        lost = _lost(second)
        begun = read_create_record(folder, "main")
        assert begun is not None
        write_create_record(folder, "main", begun._replace(restored=False))
        again = _made(second, "main1", "main")
        again.start()
        assert agent.exception(30) is None
    _assert_counted_on(second, lost, again)


def test_container_whose_runtime_was_killed_before_it_had_run_comes_back_without_the_agent(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    folder = str(site.state / "pods/pod-2")
    with _returning(site, second, images) as agent:
        write_create_record(folder, "main", ContainerResult(restored=False, id="killed"))
        (second.volume / "later").touch()
        _made(second, "main1", "main").start()
        assert agent.exception(30) is None
    assert (second.volume / "later").exists(), "nobody has laid it anew"


def test_nothing_of_its_pod_comes_back_before_the_volumes_of_a_lost_container_are_laid_anew(site: Site) -> None:
    """The kubelet goes on to the next container after one that was not created."""
    images = _saved_with_another(site)
    second = site.replacement("pod-2", "main", "beside")
    with _returning(site, second, images) as agent:
        lost = _lost(second)
        (second.volume / "later").write_text("by the lost one")
        _made(second, "beside").start()
        assert not (second.volume / "later").exists()
        lost.join()
        again = _made(second, "main1", "main")
        again.start()
        assert agent.exception(30) is None
    _assert_counted_on(second, lost, again)


def test_container_that_is_lost_beside_one_that_runs_is_a_failure(site: Site) -> None:
    """What they share cannot be laid anew."""
    images = _saved_with_another(site)
    second = site.replacement("pod-2", "main", "beside")
    with _returning(site, second, images) as agent:
        _made(second, "main").start()
        (second.volume / "later").write_text("by the one that runs")
        _lost(second, "beside")
        again = _made(second, "beside1", "beside")
        with pytest.raises(AssertionError, match="another container of the pod still runs"):
            again.start()
        assert isinstance(agent.exception(30), RestoreError)
    assert not again.lines
    assert (second.volume / "later").exists()


def test_pod_whose_container_runs_on_forgotten_begins_again(site: Site) -> None:
    """Containerd has ended while it started it. The kubelet's part in a new sandbox is this test's own."""
    _, images = save_counting_pod(site)
    again = images.parent / "fetched-again"
    shutil.copytree(images, again, symlinks=True)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    forgotten = second.containers["main"]
    forgotten.await_lines(3)
    beside = _made(second, "main1", "main")
    with pytest.raises(AssertionError, match="which ran on unseen: its pod has to begin again"):
        beside.start()
    forgotten.join()
    assert not beside.lines
    second.await_end_of_sandbox()  # of which the kubelet sees that the pod must begin again
    second.end()

    third = site.node.pod("pod-2", 1)
    assert site.bring_back(third, again, "main") is None
    third.containers["main"].await_lines(3)
    numbers = [int(line) for line in (third.volume / "number").read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_container_that_has_ended_is_started_as_any_other(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    first = second.containers["main"]
    first.await_lines(3)
    freezer.kill(first.freezer)
    first.join()
    beside = _made(second, "main1", "main")
    beside.start()
    beside.await_lines(1)
    assert beside.lines == ["cold"]
    assert second.has_sandbox()


def test_lost_container_that_nobody_lays_volumes_for_is_refused_in_time(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    with _returning(site, second, images) as agent:
        _lost(second)
        doing = site.returns._orders._working["pod-2"]
        doing.get_loop().call_soon_threadsafe(doing.cancel)  # the agent is away
        assert isinstance(agent.exception(30), OvertakenError)
        with pytest.raises(AssertionError, match="the agent has not prepared the pod's volumes again in time"):
            _made(second, "main1", "main").start()
