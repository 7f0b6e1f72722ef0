"""The agent tells of a pod that begins again, and of no other: what it says frees the snapshot that the pod claims."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from asyncinotify import Inotify, Mask, Watch

from cedana_sched.cluster.node.containers.bundles import Bundles, Incarnation
from cedana_sched.cluster.node.restoring.incarnation_reports import IncarnationReports, watch_created_containers
from cedana_sched.cluster.node.restoring.restore_states import IncarnationEndedError, IncarnationRecords
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.own_kinds.order_exchange import (
    AnsweredOrder,
    GivenOrder,
    NamedPod,
    OrderedObject,
    OrderedSpec,
    OrderedStatus,
)
from cedana_sched.kube.resources import RESTORES, Resource
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects.names import RESTORE_CONTAINER
from cedana_sched.model.records import RestoreStep
from cedana_sched.retrying import API_CALLS
from tests.pauses import shorten_pauses
from tests.unit.cluster.node.bundle_tree import Host, state

FIRST, SECOND = Incarnation("c1", "s1"), Incarnation("c2", "s2")
POD = Pod(
    Metadata("md-0", "bio", "p1"),
    PodSpec(containers=(Container("main"),), init_containers=(Container(RESTORE_CONTAINER),)),
)


def restore(
    step: RestoreStep = RestoreStep.RUNNING,
    beginning: int = 0,
    *,
    asked: int = 3,
    answered: int | None = 3,
    **told: str,
) -> OrderedObject:
    """The Restore of one beginning of the pod, with its last order and answer."""
    order = GivenOrder(asked, msgspec.Raw(b"{}")) if asked else None
    answer = None if answered is None else AnsweredOrder(answered)
    status = OrderedStatus(str(step), order, answer, beginning, told.get("replaced_by"))
    metadata = Metadata(
        f"r{beginning}", "bio", f"uid-of-r{beginning}", resource_version=f"{step}{asked}{answered}{told}"
    )
    return OrderedObject(metadata, OrderedSpec(f"restore.p1.{beginning}", NamedPod("p1")), status)


class Node:
    """One pod's restore container runs in sandbox `s2`; `told` is what the agent writes of that."""

    def __init__(self, folder: Path) -> None:
        self.host = Host(folder / "host")
        self.served = IncarnationRecords(folder / "served")
        self.restores: Informer[OrderedObject] = Informer(cast("Any", None))
        self.restores.synced.set()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.heard = asyncio.Event()
        self.refusals = 0
        self.pods = {"p1": POD}
        self.beginnings = IncarnationReports(
            cast("Any", self), self.restores, self.pods.get, self.host.places, self.served
        )

    def begins(self, beginning: Incarnation = SECOND) -> None:
        self.host.container(beginning.sandbox, name="", kind="sandbox")
        self.host.container(beginning.container, name=RESTORE_CONTAINER, sandbox=beginning.sandbox)

    async def patch(
        self, resource: Resource, name: str, namespace: str, patch: dict[str, Any], *, subresource: str
    ) -> None:
        assert (resource, namespace, subresource) == (RESTORES, "bio", "status")
        if self.refusals:
            self.refusals -= 1
            raise ApiUnavailableError("not now")
        self.told.append((name, patch["status"]))
        self.heard.set()

    async def tells(self, *restores: OrderedObject) -> list[str]:
        """On which Restores it tells of a new beginning."""
        self.restores._replace(restores)
        await self.beginnings.report()
        assert all(said == {"replacedBy": SECOND.container} for _, said in self.told)
        return [name for name, _ in self.told]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("step", [RestoreStep.RUNNING, RestoreStep.FAILED])
async def test_pod_that_was_decided_for_begins_again_in_another_sandbox(node: Node, step: RestoreStep) -> None:
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    assert await node.tells(restore(step)) == ["r0"]


async def test_pod_that_runs_begins_nothing(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.host.container("main-1")
    node.host.container("s1", name="", kind="sandbox")
    assert await node.tells(restore()) == []


async def test_restore_container_that_was_decided_for_and_still_ends_is_no_new_one(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", SECOND)
    node.begins()
    assert await node.tells(restore()) == []


async def test_restore_container_that_failed_and_is_made_anew_in_the_same_sandbox_begins_again(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", Incarnation("c1", "s2"))
    node.begins()
    assert await node.tells(restore(RestoreStep.FAILED)) == ["r0"]


@pytest.mark.parametrize(
    "waits",
    [restore(RestoreStep.WAITING), restore(RestoreStep.STAGING), restore(RestoreStep.RESTORING, answered=2)],
    ids=["looks for a snapshot", "fetches it", "is to be continued"],
)
async def test_first_beginning_is_for_the_return_that_waits_for_it(node: Node, waits: OrderedObject) -> None:
    node.begins()
    assert await node.tells(waits) == []
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    next_one = restore(RestoreStep.WAITING, 1)
    assert await node.tells(restore(RestoreStep.ENDED), next_one) == [], "the next one is for it"


async def test_order_that_is_under_way_is_for_the_next_restore_container_of_its_sandbox(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", Incarnation("c1", "s2"))
    node.begins()
    assert await node.tells(restore(RestoreStep.RESTORING, answered=2)) == []


@pytest.mark.parametrize("step", [RestoreStep.RESTORING, RestoreStep.STARTING_COLD, RestoreStep.FAILING_WORKLOAD])
async def test_order_that_was_begun_in_another_sandbox_is_not_for_this_one(node: Node, step: RestoreStep) -> None:
    """Containers may have been continued there; nobody knows, the node may have rebooted."""
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    assert await node.tells(restore(step, answered=2)) == ["r0"]


async def test_failure_that_no_node_confirmed_is_to_be_confirmed(node: Node) -> None:
    node.begins()
    assert await node.tells(restore(RestoreStep.FAILED, answered=2)) == []


async def test_pod_begins_again_once_more(node: Node) -> None:
    node.served.record_assignment("restore.p1.1", "p1", FIRST)
    node.begins()
    assert await node.tells(restore(RestoreStep.ENDED, replaced_by="c1"), restore(beginning=1)) == ["r1"]


async def test_what_is_told_already_is_not_told_again(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    assert await node.tells(restore(replaced_by="c2")) == []
    assert await node.tells(restore(RestoreStep.ENDED, replaced_by="c2")) == []


async def test_pod_of_no_return_is_nobodys_business(node: Node) -> None:
    node.begins()
    other = msgspec.structs.replace(restore(), spec=OrderedSpec("restore.p2", NamedPod("p2")))
    assert await node.tells(other) == []


@pytest.mark.parametrize(
    "states",
    [{"c2": state(start=1)}, {"s2": state(start=1)}],
    ids=["the restore container has ended", "its sandbox has died"],
)
async def test_what_does_not_run_begins_nothing(node: Node, states: dict[str, Any]) -> None:
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    for name, content in states.items():
        node.host.write(node.host.places.states / name / "state.json", content)
    assert await node.tells(restore()) == []


async def test_nothing_is_told_while_something_of_the_pod_runs(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    node.host.container("main-1")
    node.restores._replace((restore(),))
    assert not await node.beginnings.report()
    assert node.told == []
    node.host.write(node.host.places.states / "main-1/state.json", state(start=1))
    node.host.container("debugger-1", name="debugger")
    assert await node.beginnings.report(), "a person's own container keeps nothing from starting"
    assert len(node.told) == 1


async def test_kubelet_that_starts_everything_at_once_begins_the_pod_again(node: Node) -> None:
    """Its node rebooted while it created a container: it takes the pod for initialized."""
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    node.host.container("main-2", sandbox=SECOND.sandbox)
    assert await node.tells(restore(RestoreStep.RESTORING)) == ["r0"]


async def test_pod_that_is_not_known_yet_is_looked_at_again(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    node.restores._replace((restore(),))
    known = node.pods.pop("p1")
    assert not await node.beginnings.report()
    node.pods["p1"] = known
    assert await node.beginnings.report()


def _volume(node: Node) -> Path:
    return node.host.folder(node.host.places.pods / "p1/volumes/kubernetes.io~empty-dir/cedana-restore")


async def test_without_a_note_the_container_that_ends_with_a_decision_is_no_new_one(node: Node) -> None:
    """An agent of an earlier version wrote none, and was replaced just then."""
    node.begins()
    volume = _volume(node)
    (volume / "waiting").write_text("a1")
    (volume / "taken.a1").touch()
    node.restores._replace((restore(),))
    assert not await node.beginnings.report()
    assert node.told == []
    (volume / "waiting").write_text("a2")
    assert await node.beginnings.report()
    assert len(node.told) == 1


async def test_without_a_note_and_without_a_volume_it_is_new(node: Node) -> None:
    """The node was made anew, and the kubelet has the volume still to mount."""
    node.begins()
    assert await node.tells(restore()) == ["r0"]


async def test_it_is_told_until_the_api_server_takes_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.restores._replace((restore(),))
    node.refusals = 3
    node.host.folder(node.host.places.states)
    running = asyncio.create_task(node.beginnings.run())
    await asyncio.sleep(0)
    node.begins()  # the agent hears of it by the container's own files
    async with asyncio.timeout(60):
        await node.heard.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.told[0] == ("r0", {"replacedBy": "c2"})


async def test_return_that_is_decided_while_its_container_fails_is_looked_at_again(node: Node) -> None:
    node.served.record_assignment("restore.p1.0", "p1", Incarnation("c1", "s2"))
    node.begins()
    node.restores._replace((restore(RestoreStep.FAILING_WORKLOAD, answered=2),))
    running = asyncio.create_task(node.beginnings.run())
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert node.told == []
    node.restores._put(restore(RestoreStep.FAILED))
    async with asyncio.timeout(60):
        await node.heard.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_containers_are_heard_of_once_runc_has_written_their_state(tmp_path: Path) -> None:
    states = tmp_path / "states"
    heard: asyncio.Queue[None] = asyncio.Queue()
    watching = asyncio.create_task(watch_created_containers(states, lambda: heard.put_nowait(None)))
    await asyncio.sleep(0)
    states.mkdir()
    async with asyncio.timeout(60):
        await heard.get()  # what was there before
        (states / "c1").mkdir()
        (states / "c1/state-123").write_text("{}")
        await asyncio.sleep(0.05)
        assert heard.empty()
        (states / "c1/state-123").rename(states / "c1/state.json")
        await heard.get()
        (states / "c2").mkdir()
        (states / "c2").rmdir()
        (states / "c3").mkdir()
        (states / "c3/state.json").write_text("{}")
        await heard.get()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_container_that_cannot_be_watched_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watches of root are those of every pod that runs as root: one of them may take all."""
    monkeypatch.setattr("cedana_sched.component.folder_watches.LOOK_SECONDS", 0.01)
    states = tmp_path / "states"
    states.mkdir()
    add_watch = Inotify.add_watch

    def taken(self: Inotify, path: Path, mask: Mask) -> Watch:
        if path != states:
            raise OSError(errno.ENOSPC, "No space left on device")
        return add_watch(self, path, mask)

    monkeypatch.setattr(Inotify, "add_watch", taken)
    heard: asyncio.Queue[None] = asyncio.Queue()
    watching = asyncio.create_task(watch_created_containers(states, lambda: heard.put_nowait(None)))
    async with asyncio.timeout(60):
        await heard.get()
        (states / "c1").mkdir()
        await asyncio.sleep(0.05)
        assert heard.empty()
        (states / "c1/state.json").touch()
        await heard.get()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_containers_are_looked_for_where_nobody_tells_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the agent, again at each start."""
    monkeypatch.setattr("cedana_sched.component.folder_watches.LOOK_SECONDS", 0.01)

    def spent(cache_size: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("cedana_sched.component.folder_watches.Inotify", spent)
    heard: asyncio.Queue[None] = asyncio.Queue()
    watching = asyncio.create_task(watch_created_containers(tmp_path, lambda: heard.put_nowait(None)))
    async with asyncio.timeout(60):
        await heard.get()
        for name in ("c1", "c2"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "state.json").touch()
            await heard.get()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_defect_that_a_pod_shows_does_not_end_the_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    node.served.record_assignment("restore.p1.0", "p1", FIRST)
    node.begins()
    node.restores._replace((restore(),))
    looks, defects = Bundles.running_incarnations, [ValueError("odd"), ValueError("odd")]

    def fails(self: Bundles) -> dict[str, Incarnation]:
        if defects:
            raise defects.pop()
        return looks(self)

    monkeypatch.setattr(Bundles, "running_incarnations", fails)
    running = asyncio.create_task(node.beginnings.run())
    async with asyncio.timeout(60):
        await node.heard.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_is_looked_again_once_at_a_time_however_much_changes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(API_CALLS, "min", 0.05)
    monkeypatch.setattr(API_CALLS, "max", 0.05)
    looked = 0

    async def unclear() -> bool:
        nonlocal looked
        looked += 1
        return False

    node.host.folder(node.host.places.states)
    monkeypatch.setattr(node.beginnings, "report", unclear)
    running = asyncio.create_task(node.beginnings.run())
    for _ in range(20):
        await asyncio.sleep(0.001)
        node.restores._put(restore())
        node.restores._drop(restore())
    before = looked
    await asyncio.sleep(0.5)
    assert looked - before <= 11
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_note_outlives_the_agent(tmp_path: Path) -> None:
    IncarnationRecords(tmp_path).record_assignment("r1", "p1", FIRST)
    again = IncarnationRecords(tmp_path)
    known = again.record_of("p1")
    assert known is not None
    assert (known.restore, known.container, known.sandbox) == ("r1", "c1", "s1")
    assert again.record_of("p2") is None
    again.forget_all_but(["p2"])
    assert again.record_of("p1") is None


def test_return_serves_one_sandbox(tmp_path: Path) -> None:
    served = IncarnationRecords(tmp_path)
    served.record_assignment("r1", "p1", FIRST)
    served.record_assignment("r1", "p1", Incarnation("c9", "s1"))
    with pytest.raises(IncarnationEndedError):
        served.record_assignment("r1", "p1", SECOND)
    served.record_assignment("r2", "p1", SECOND)
    known = served.record_of("p1")
    assert known is not None
    assert (known.restore, known.sandbox) == ("r2", "s2")


def test_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "p1").write_text("{")
    assert IncarnationRecords(tmp_path).record_of("p1") is None
