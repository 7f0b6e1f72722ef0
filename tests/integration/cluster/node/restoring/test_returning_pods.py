"""Pods come back through the runtime handler, the real runc and the real CRIU."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from cedana_sched.cluster.node.restoring.pod_order_serializer import OvertakenError
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.runtime_handler.plan import COLD, FAIL, RESTORE, ContainerPlan, Plan, read_result, write_plan
from tests.integration.cluster.node.restoring.conftest import Site
from tests.integration.cluster.node.restoring.counting import save_counting_pod

pytestmark = pytest.mark.criu


def test_a_pod_continues_with_its_files(site: Site) -> None:
    first, images = save_counting_pod(site)
    counted = first.containers["main"].lines

    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None

    again = second.containers["main"]
    again.await_lines(3)
    assert int(again.lines[0]) == int(counted[-1]) + 1
    assert "continuing from the snapshot" in site.said
    for kept in (second.volume / "number", again.upper / "srv/number", second.shared_memory / "number"):
        numbers = [int(line) for line in kept.read_text().split()]
        assert numbers == list(range(1, len(numbers) + 1)), kept


def test_a_container_that_cannot_continue_begins_anew_with_the_files_of_its_image(site: Site) -> None:
    images = _damaged(site)

    pod = site.replacement("pod-2", "main")
    error = site.bring_back(pod, images, "main")

    again = pod.containers["main"]
    again.await_lines(1)
    assert again.lines == ["cold"]
    assert not (again.upper / "srv/number").exists()
    assert isinstance(error, RestoreError)
    assert "container main" in str(error)
    result = read_result(str(site.state / "pods/pod-2"), "main")
    assert result is not None
    assert (result.restored, result.cold) == (False, True)
    assert result.log is not None
    assert "Error" in Path(result.log).read_text()


def test_where_the_policy_says_so_it_fails_and_says_why(site: Site) -> None:
    images = _damaged(site)
    site.watched.policy = OnRestoreFailure.FAIL

    pod = site.replacement("pod-2", "main")
    with pytest.raises(AssertionError, match="cedana: not continued from its snapshot: criu failed"):
        site.bring_back(pod, images, "main")
    again = pod.containers["main"]
    with pytest.raises(AssertionError, match="cedana: not continued from its snapshot: criu failed"):
        again.start()
    assert not again.lines


def test_containers_that_had_ended_do_nothing_this_time(site: Site) -> None:
    _, images = save_counting_pod(site)

    second = site.replacement("pod-2", "main", inits=("prepare",))
    assert site.bring_back(second, images, "prepare", "main") is None

    site.node.runc("state", second.containers["prepare"].id)
    second.containers["main"].await_lines(1)
    assert second.containers["prepare"].lines == []


def test_a_container_that_was_not_there_does_not_see_what_the_others_have_left(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main", "reader")
    with pytest.raises(RestoreError, match="container reader: it was not in the pod when the snapshot was taken"):
        site.refuse(second, images)
    assert list(second.volume.iterdir()) == []


def test_a_container_that_the_kubelet_starts_again_begins_anew(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    again = second.containers["main"]
    again.await_lines(1)
    site.node.runc("delete", "--force", again.id)
    again.join()
    again.lines.clear()
    specification = json.loads((again.bundle / "config.json").read_text())
    specification["process"]["args"] = ["/bin/echo", "cold"]
    (again.bundle / "config.json").write_text(json.dumps(specification))

    again.start()

    again.await_lines(1)
    assert again.lines == ["cold"]


def test_an_agent_that_is_started_anew_goes_on(site: Site) -> None:
    _, images = save_counting_pod(site)
    second = site.replacement("pod-2", "main")

    async def interrupted() -> None:
        """The agent has made its plan and told the restore container, and dies."""
        task = asyncio.create_task(site.returns.restore(site.return_of(second), site.ref(second), images, site.facts))
        await asyncio.to_thread(site.let_start, second)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(interrupted())
    assert not asyncio.run(site.returns.was_restored(site.ref(second)))
    main = second.container("main")
    main.make(["/bin/echo", "cold"])
    main.start()
    (images / "volumes/data.tar").write_bytes(b"")  # it would be seen if anything were laid again

    asyncio.run(site.returns.restore(site.return_of(second), site.ref(second), images, site.facts))

    assert asyncio.run(site.returns.was_restored(site.ref(second)))
    main.await_lines(1)
    assert "cold" not in main.lines


@pytest.mark.parametrize(
    ("policy", "begins_anew"), [(OnRestoreFailure.COLD_START, True), (OnRestoreFailure.FAIL, False)]
)
def test_a_handler_that_crashes_keeps_no_container_from_starting(
    site: Site, policy: OnRestoreFailure, begins_anew: bool
) -> None:
    plan = Plan(RESTORE, fallback=FAIL if policy is OnRestoreFailure.FAIL else COLD, containers={"main": _NOWHERE})
    write_plan(str(site.state / "pods/pod-1"), plan)
    (site.folder / "opt" / (site.folder / "opt/bin").readlink() / "../python/bin/python3").write_bytes(b"no program")
    main = site.node.pod("pod-1").container("main")
    main.make(["/bin/echo", "cold"])

    if begins_anew:
        main.start()
        main.await_lines(1)
    else:
        with pytest.raises(AssertionError, match="cedana: the runtime handler ended with status"):
            main.start()

    result = read_result(str(site.state / "pods/pod-1"), "main")
    assert result is not None
    assert (result.restored, result.cold) == (False, begins_anew)


def test_a_pod_without_a_plan_is_runcs_alone(site: Site) -> None:
    write_plan(str(site.state / "pods/another"), Plan(RESTORE, containers={"main": _NOWHERE}))
    main = site.node.pod("pod-1").container("main")
    main.make(["/bin/echo", "cold"])
    main.start()
    main.await_lines(1)


def test_a_restore_that_hangs_is_ended_and_leaves_nothing(site: Site) -> None:
    site.returns = PodRestorer(
        site.node.places, site.state, site.folder / "data", site.toolchain, site.watched, restore_seconds=2
    )
    _, images = save_counting_pod(site)
    for pages in (images / "main").glob("pages-*.img"):
        pages.write_bytes(b"")  # CRIU 4.2.1 reads it for ever
    pod = site.replacement("pod-2", "main")
    error = site.bring_back(pod, images, "main")
    assert "did not end within 2 s" in str(error)
    pod.containers["main"].join()
    assert pod.containers["main"].lines == ["cold"]
    assert str(site.folder / "data") not in Path("/proc/mounts").read_text()


def hanging_criu(site: Site, times: int) -> Path:
    """Have CRIU stop itself, as a debugger would, the first so many times that runc calls it; returns the count."""
    bin_folder = site.folder / "opt" / (site.folder / "opt/bin").readlink()
    criu, count = bin_folder / "../criu/bin/criu", site.folder / "calls"
    stop = f'case "$*" in *swrk*) echo >>{count}; [ $(wc -l <{count}) -gt {times} ] || kill -STOP $$;; esac'
    criu.write_text(criu.read_text().replace("\n", f"\n{stop}\n", 1))
    return count


def test_a_criu_that_hangs_once_costs_seconds_and_no_work(site: Site) -> None:
    first, images = save_counting_pod(site)
    counted = first.containers["main"].lines
    site.returns = PodRestorer(site.node.places, site.state, site.folder / "data", site.toolchain, site.watched, 2.0)
    count = hanging_criu(site, times=1)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    again = second.containers["main"]
    again.await_lines(3)
    assert int(again.lines[0]) == int(counted[-1]) + 1
    assert len(count.read_text().splitlines()) == 3, "runc asks for its version first"
    numbers = [int(line) for line in (again.upper / "srv/number").read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1)), "the files were laid anew"


def test_a_criu_that_hangs_again_is_ended_long_before_the_kubelet_gives_up(site: Site) -> None:
    _, images = save_counting_pod(site)
    site.returns = PodRestorer(site.node.places, site.state, site.folder / "data", site.toolchain, site.watched, 1.0)
    count = hanging_criu(site, times=9)
    pod = site.replacement("pod-2", "main")
    error = site.bring_back(pod, images, "main")
    assert "CRIU made no progress for 1 s" in str(error)
    pod.containers["main"].join()
    assert pod.containers["main"].lines == ["cold"]
    assert len(count.read_text().splitlines()) == 2
    assert str(site.folder / "data") not in Path("/proc/mounts").read_text()


def test_a_failure_of_our_own_program_is_not_said_to_be_crius(site: Site) -> None:
    _, images = save_counting_pod(site)
    (in_its_way := site.folder / "data/logs/pod-2/main").parent.mkdir(parents=True)
    in_its_way.touch()
    pod = site.replacement("pod-2", "main")
    error = site.bring_back(pod, images, "main")
    assert isinstance(error, RestoreError)
    assert "the runtime handler failed: FileExistsError" in str(error)
    assert "Traceback" in error.evidence[0]
    pod.containers["main"].join()
    assert pod.containers["main"].lines == ["cold"]


TALKER = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
here = socket.create_connection(listener.getsockname())
there, _ = listener.accept()
number = 0
while True:
    number += 1
    here.sendall(f"{number}\\n".encode())
    print(there.recv(100).decode(), end="")
    time.sleep(0.02)
"""


def test_connections_of_a_container_to_itself_go_on(site: Site) -> None:
    first = site.node.pod("pod-1")
    first.run("main", TALKER).await_lines(3)
    images = site.take(first)
    counted = first.containers["main"].lines
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    again = second.containers["main"]
    again.await_lines(3)
    assert int(again.lines[0]) == int(counted[-1]) + 1


_NOWHERE = ContainerPlan(images="/nonexistent", work="/nonexistent")


def _damaged(site: Site) -> Path:
    """A staged snapshot that CRIU cannot read."""
    _, images = save_counting_pod(site)
    for image in (images / "main").glob("mm-*.img"):
        image.write_bytes(b"")
    return images


def test_an_order_is_overtaken_by_the_next_one_for_the_same_pod(site: Site) -> None:
    pod = site.replacement("pod-2", "main")

    async def both() -> None:
        nothing = site.state / "nothing"
        first = asyncio.create_task(
            site.returns.restore(site.return_of(pod), site.ref(pod), nothing, {"containers": ["main"]})
        )
        await asyncio.sleep(0)
        second = asyncio.create_task(site.returns.start_cold(site.return_of(pod), site.ref(pod), "it took too long"))
        with pytest.raises(OvertakenError):
            await first
        assert "it took too long" in await asyncio.to_thread(site.let_start, pod)
        await second

    asyncio.run(both())


ENDS = """
import signal, sys, time
def told(number, frame):
    print(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit()
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, told)
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.02)
"""


def test_a_request_to_end_that_came_while_it_was_frozen_does_not_come_back_with_it(site: Site) -> None:
    """The kubelet's, where the agent was killed in a hold; any other signal is the program's own."""
    first = site.node.pod("pod-1")
    first.run("main", ENDS).await_lines(3)
    (tree,) = site.freeze(first).containers
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(tree.root_pid, number)
    images = site.take(first)

    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None

    again = second.containers["main"]
    again.await_lines(5)
    assert "SIGTERM" not in again.lines
    assert "SIGUSR1" in again.lines
